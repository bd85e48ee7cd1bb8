"""Where the norm goes, as a value: one formula whose parts can be left out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from normkit import checks
from normkit.errors import user_error

__all__ = ["INNER", "DepthFormula", "Learned", "Number", "Placement", "value_of"]


@dataclass(frozen=True)
class DepthFormula:
    """A number that depends on the place in the stack: ``value(layer, depth)``, layers counted from 1.

    ``text`` is how it is printed. Two of them are equal if they print the same.
    """

    text: str
    value: Callable[[int, int], float] = dataclasses.field(compare=False, repr=False)

    def __call__(self, layer: int, depth: int) -> float:
        return self.value(layer, depth)


Number = float | DepthFormula | Callable[[int, int], float]


@dataclass(frozen=True)
class Learned:
    """A number that is trained: one for all features, or one each."""

    start: Number
    per_feature: bool = False


# Norms inside of a sublayer, which the sublayer itself must have a place for.
INNER = {
    "output": "a norm before the output projection",
    "qkv": "a norm on each head's queries, keys and values",
    "activation": "a norm after the activation of the feed-forward",
    "heads": "a learned scale for each head",
}


@dataclass(frozen=True)
class Placement:
    r"""Where the norms of one residual sublayer F stand, and what is multiplied by what.

        x <- post( skip · x + gate · out( F( scale · pre(x) ) ) )

    ``pre``, ``out`` and ``post`` say whether there is a norm in that place. Numbers may be functions of
    (layer, depth), layers counted from 1; ``skip`` and ``gate`` may be :class:`Learned`.

    Args:
        skip: multiplies the stream that goes past the sublayer.
        gate: multiplies what the sublayer adds.
        scale: multiplies what the sublayer reads.
        gain: the initial weights of values, output projections and feed-forwards are multiplied by it.
            A sublayer does so in its method ``initialise(gain)``, if it has one; scale others yourself.
        final: whether a stack ends in a norm of its own.
        inner: names of norms inside of the sublayer: "output", "qkv", "activation", "heads".
        dual: keep a second stream r <- r + F(x) beside, and end with x + N(r).

    Example:
        >>> print(Placement(pre=True, final=True))
        x <- x + F(N(x)); final N
        >>> skip = DepthFormula("(2L)^1/4", lambda layer, depth: (2 * depth) ** 0.25)
        >>> print(Placement(post=True, skip=skip))
        x <- N((2L)^1/4·x + F(x))
    """

    pre: bool = False
    out: bool = False
    post: bool = False
    skip: Number | Learned = 1.0
    gate: Number | Learned = 1.0
    scale: Number = 1.0
    gain: Number = 1.0
    final: bool = False
    inner: tuple[str, ...] = ()
    dual: bool = False

    def __post_init__(self) -> None:
        inner = (self.inner,) if isinstance(self.inner, str) else tuple(self.inner)
        object.__setattr__(self, "inner", inner)
        for name in inner:
            checks.one_of(name, INNER, what="inner=")
        for name in ("skip", "gate", "scale", "gain"):
            value = getattr(self, name)
            if isinstance(value, Learned) and name in ("skip", "gate"):
                value = value.start
            if isinstance(value, bool) or not (_is_finite(value) or callable(value)):
                raise user_error(
                    f"Placement got {name}={value!r}.", expected="a number, or a function of (layer, depth)"
                )
        if self.dual and (not self.post or self.final):
            raise user_error(
                f"Placement got dual=True, post={self.post} and final={self.final}.",
                expected="post=True and final=False: the second stream goes beside one that is normalised",
            )

    def at(self, layer: int, depth: int) -> Placement:
        """The same with the numbers of this layer."""

        def fixed(value: Any) -> Any:
            if isinstance(value, Learned):
                return Learned(value_of(value.start, layer, depth), value.per_feature)
            return value_of(value, layer, depth)

        numbers: dict[str, Any] = {n: fixed(getattr(self, n)) for n in ("skip", "gate", "scale", "gain")}
        return dataclasses.replace(self, **numbers)

    def __repr__(self) -> str:
        """As one would write it: what is left out is as by default."""
        shown = [f for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        return f"Placement({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"

    def _repr_svg_(self) -> str:
        """For a notebook: the figure of :func:`draw`."""
        from normkit.placement.drawing import draw  # which draws what is defined here

        return str(draw(self))

    def __str__(self) -> str:
        read = _times(self.scale, "N(x)" if self.pre else "x")
        added = f"N(F({read}))" if self.out else f"F({read})"
        total = f"{_times(self.skip, 'x')} + {_times(self.gate, added)}"
        parts = [f"x <- N({total})" if self.post else f"x <- {total}"]
        if self.dual:
            parts += [f"r <- r + {_times(self.gate, added)}", "x + N(r) in the end"]
        if self.gain != 1:
            parts.append(f"initial weights times {_text(self.gain)}")
        parts += [INNER[name] for name in self.inner]
        if self.final:
            parts.append("final N")
        return "; ".join(parts)


def value_of(number: Number, layer: int, depth: int) -> float:
    """A number, or what its function says for this layer."""
    if not callable(number):
        return float(number)
    value = number(layer, depth)
    if isinstance(value, bool) or not _is_finite(value):
        raise user_error(
            f"A placement's function of (layer, depth) gave {value!r} for ({layer}, {depth}).",
            expected="a number",
        )
    return float(value)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _text(number: Number) -> str:
    if isinstance(number, DepthFormula):
        return number.text
    return f"{getattr(number, '__name__', 'f')}(l, L)" if callable(number) else f"{number:g}"


def _times(number: Number | Learned, what: str) -> str:
    if isinstance(number, Learned):
        return f"{'γ' if number.per_feature else 'α'}·{what}"
    return what if number == 1 else f"{_text(number)}·{what}"
