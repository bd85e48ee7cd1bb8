"""The pattern language: which numbers share one mean?

A pattern names the axes of a tensor, as in einops, and puts brackets around those that are
normalised together. Parentheses split one axis into factors; an ellipsis stands for any number of axes.

    b l [d]             LayerNorm and RMSNorm over features
    [n] c [h w]         BatchNorm
    n (g [c]) [h w]     GroupNorm: channels are g groups of c, and a mean is taken within a group
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch

from normkit.checks import one_of
from normkit.errors import NormkitError, user_error

__all__ = ["ELLIPSIS", "Axis", "Factor", "Layout", "Pattern", "describe"]

ELLIPSIS = "..."
# Sizes are passed by name, next to these arguments.
RESERVED = {"pattern", "weight", "bias", "eps", "center", "affine", "mask", "device", "dtype", "self"}


@dataclass(frozen=True)
class Factor:
    """One name of a pattern. ``shared`` says that it stands in brackets."""

    name: str
    shared: bool
    start: int


@dataclass(frozen=True)
class Axis:
    """One axis of the input: a single factor, or several in parentheses. [start, stop) is its text."""

    factors: tuple[Factor, ...]
    start: int
    stop: int

    @property
    def is_ellipsis(self) -> bool:
        return self.factors[0].name == ELLIPSIS


@dataclass(frozen=True)
class Layout:
    """A pattern laid over one shape: every factor is an axis of its own, with its size."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    shared: tuple[bool, ...]
    axis_of: tuple[int, ...]  # the input axis that each factor belongs to

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes, counted after the split, that share one mean."""
        return tuple(i for i, shared in enumerate(self.shared) if shared)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """View ``x`` with one axis a factor. Splitting an axis is a view in any memory layout."""
        return x if len(self.sizes) == x.ndim else x.reshape(self.sizes)


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern.

    Example:
        >>> Pattern.parse("n (g [c]) [h w]").layout((2, 6, 4, 4), {"g": 3}).sizes
        (2, 3, 2, 4, 4)
    """

    text: str
    axes: tuple[Axis, ...]

    @staticmethod
    def parse(text: str) -> Pattern:
        """Read a pattern; a mistake is shown with a caret under it."""
        return _parse(text)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f.name for a in self.axes for f in a.factors if f.name != ELLIPSIS)

    @property
    def shared_names(self) -> tuple[str, ...]:
        return tuple(f.name for a in self.axes for f in a.factors if f.shared and f.name != ELLIPSIS)

    def affine(self, names: str | Sequence[str] | None, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """The axes that parameters have: those that are named, else every whole axis with known sizes."""
        if names is None:
            whole = (a for a in self.axes if all(f.name in sizes for f in a.factors))
            return tuple(f.name for a in whole for f in a.factors)
        chosen = names.split() if isinstance(names, str) else list(names)
        for name in chosen:
            one_of(name, self.names, what=f"affine= for pattern {self.text!r}")
        return tuple(n for n in self.names if n in chosen)

    def parameter_shape(self, names: Sequence[str], sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of a weight along ``names``: one size an input axis, as in the input."""
        chosen = ([sizes[f.name] for f in axis.factors if f.name in names] for axis in self.axes)
        return tuple(math.prod(factors) for factors in chosen if factors)

    def axis(self, name: str) -> Axis:
        return next(a for a in self.axes for f in a.factors if f.name == name)

    def check_sizes(self, sizes: Mapping[str, int]) -> None:
        """Refuse a size for a name that the pattern does not have, or one that is not an integer > 0."""
        for name, size in sizes.items():
            if name not in self.names:
                raise user_error(
                    f"pattern {self.text!r} got a size for {name!r}, which it does not name.",
                    expected=f"sizes for some of: {', '.join(self.names)}",
                    fix=f"rename it, or remove {name}={size!r}.",
                )
            if isinstance(size, bool) or not isinstance(size, Integral | torch.SymInt) or size < 1:
                raise self.error(
                    self.axis(name),
                    f"pattern {self.text!r} got {name}={size!r}.",
                    expected="an integer of at least 1",
                )

    def layout(self, shape: Sequence[int], sizes: Mapping[str, int]) -> Layout:
        """Lay the pattern over ``shape``: find the size of every factor, or say which axis does not fit."""
        spare = len(shape) - sum(not a.is_ellipsis for a in self.axes)
        if spare < 0 or (spare > 0 and not any(a.is_ellipsis for a in self.axes)):
            least = "at least " if any(a.is_ellipsis for a in self.axes) else ""
            raise user_error(
                f"pattern {self.text!r} got an input of shape {tuple(shape)}, which has {len(shape)} axes.",
                expected=f"{least}{len(shape) - spare} axes",
                fix="name every axis of the input once, or write ... for the leading ones.",
            )
        names: list[str] = []
        found: list[int] = []
        shared: list[bool] = []
        axis_of: list[int] = []
        position = 0
        for axis in self.axes:
            if axis.is_ellipsis:
                for i in range(spare):
                    names.append(f"{ELLIPSIS}{i}" if spare > 1 else ELLIPSIS)
                    found.append(shape[position])
                    shared.append(axis.factors[0].shared)
                    axis_of.append(position)
                    position += 1
                continue
            for factor, size in zip(axis.factors, self._split(axis, shape, position, sizes), strict=True):
                names.append(factor.name)
                found.append(size)
                shared.append(factor.shared)
                axis_of.append(position)
            position += 1
        return Layout(tuple(names), tuple(found), tuple(shared), tuple(axis_of))

    def _split(
        self, axis: Axis, shape: Sequence[int], position: int, sizes: Mapping[str, int]
    ) -> tuple[int, ...]:
        whole = shape[position]
        known = [sizes.get(f.name) for f in axis.factors]
        product = math.prod([k for k in known if k is not None])
        unknown = [f.name for f in axis.factors if f.name not in sizes]
        got = f"pattern {self.text!r} got an input of shape {tuple(shape)}."
        given = ", ".join(f"{f.name}={sizes[f.name]}" for f in axis.factors if f.name in sizes)
        if len(unknown) > 1:
            raise self.error(
                axis,
                got,
                expected=f"all but one of {', '.join(f.name for f in axis.factors)} to have a size",
                fix=f"pass {unknown[0]}=..., so that axis {position} (size {whole}) can be split.",
            )
        if not unknown and product != whole:
            times = f", i.e. {product}" if len(known) > 1 else ""
            raise self.error(
                axis,
                got,
                expected=f"axis {position} to have size {given}{times}; it has {whole}",
                fix="pass sizes that multiply to that of the axis, or move the axes of the input.",
            )
        if unknown and whole % product != 0:
            raise self.error(
                axis,
                got,
                expected=f"axis {position} to be divisible by {given}; it has {whole}",
                fix=f"choose a divisor of {whole}.",
            )
        return tuple(whole // product if k is None else k for k in known)

    def error(self, axis: Axis, got: str, *, expected: str, fix: str | None = None) -> NormkitError:
        return user_error(_point(got, self.text, axis.start, axis.stop), expected=expected, fix=fix)


def describe(pattern: str | Pattern, shape: Sequence[int], /, *, center: bool = True, **sizes: int) -> str:
    """Say in words which numbers of a shape share one mean, and over how many each is taken.

    Example:
        >>> print(describe("n (g [c]) [h w]", (2, 6, 4, 4), g=3))
        n (g [c]) [h w] on shape (2, 6, 4, 4):
          numbers that differ only in c, h and w share one mean;
          every n and g has a mean of its own.
          6 means (2 n x 3 g), each over 32 values (2 c x 4 h x 4 w).
    """
    pattern = pattern if isinstance(pattern, Pattern) else Pattern.parse(pattern)
    pattern.check_sizes(sizes)
    if not isinstance(shape, Sequence) or any(not isinstance(s, Integral) or s < 0 for s in shape):
        raise user_error(f"describe got {shape!r}.", expected="a shape, such as (2, 512, 7, 7) or x.shape")
    layout = pattern.layout(shape, sizes)
    mean = "mean" if center else "root mean square"
    inside, outside = (
        [
            (n, s)
            for n, s, shared in zip(layout.names, layout.sizes, layout.shared, strict=True)
            if shared is side
        ]
        for side in (True, False)
    )
    own = (
        f"every {_words(outside)} has a {mean} of its own."
        if outside
        else f"there is a single {mean} for the whole input."
    )
    means, values = (math.prod(s for _, s in side) for side in (outside, inside))
    return "\n".join(
        [
            f"{pattern.text} on shape {tuple(shape)}:",
            f"  numbers that differ only in {_words(inside)} share one {mean};"
            if inside
            else f"  no two numbers share a {mean};",
            f"  {own}",
            f"  {means:,} {mean}{'s' * (means != 1)}{_times(outside)}, "
            f"each over {values:,} value{'s' * (values != 1)}{_times(inside)}.",
        ]
    )


def _words(side: list[tuple[str, int]]) -> str:
    names = [name for name, _ in side]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _times(side: list[tuple[str, int]]) -> str:
    return f" ({' x '.join(f'{size} {name}' for name, size in side)})" if side else ""


def _point(got: str, text: str, start: int, stop: int) -> str:
    return f"{got}\n  {text}\n  {' ' * start}{'^' * max(1, stop - start)}"


def _parse(text: str) -> Pattern:
    if not isinstance(text, str):
        raise user_error(f"a pattern is a string, got {type(text).__name__}.", fix='write it as "b l [d]".')

    def fail(what: str, at: int, fix: str) -> NormkitError:
        return user_error(_point(f"pattern {text!r}: {what}.", text, at, at + 1), fix=fix)

    axes: list[Axis] = []
    factors: list[Factor] = []  # of the parenthesis that is open
    bracket = paren = -1  # where the open one stands
    i = 0
    while i < len(text):
        char = text[i]
        if char.isspace():
            i += 1
        elif char == "[":
            if bracket >= 0:
                raise fail("a bracket inside a bracket", i, "one pair of brackets is enough.")
            bracket, i = i, i + 1
        elif char == "]":
            if bracket < 0:
                raise fail("a bracket is closed that was not opened", i, "add [ before it, or remove it.")
            if 0 <= bracket < paren:
                raise fail("a bracket and a parenthesis cross", i, "close the inner one first.")
            if not text[bracket + 1 : i].strip(" ()"):
                raise fail("empty brackets", bracket, "name the axes that share one mean in them.")
            bracket, i = -1, i + 1
        elif char == "(":
            if paren >= 0:
                raise fail(
                    "a parenthesis inside a parenthesis", i, "one level splits an axis into any factors."
                )
            paren, i = i, i + 1
        elif char == ")":
            if paren < 0:
                raise fail("a parenthesis is closed that was not opened", i, "add ( before it, or remove it.")
            if bracket > paren:
                raise fail("a bracket and a parenthesis cross", i, "close the inner one first.")
            if not factors:
                raise fail("empty parentheses", paren, "name the factors of the axis in them.")
            axes.append(Axis(tuple(factors), paren, i + 1))
            factors, paren, i = [], -1, i + 1
        else:
            stop = i
            while stop < len(text) and not text[stop].isspace() and text[stop] not in "[]()":
                stop += 1
            name = text[i:stop]
            if name != ELLIPSIS and not name.isidentifier():
                raise fail(
                    f"{name!r} is not a name", i, "use letters, digits and _; for one or more axes write ..."
                )
            if name in RESERVED:
                raise fail(f"{name!r} is the name of an argument", i, "give the axis another name.")
            if name == ELLIPSIS and paren >= 0:
                raise fail("an ellipsis inside parentheses", i, "only named factors can split an axis.")
            if any(f.name == name for a in axes for f in a.factors) or any(f.name == name for f in factors):
                raise fail(f"{name!r} stands twice", i, "give every axis a name of its own.")
            factor = Factor(name, bracket >= 0, i)
            if paren >= 0:
                factors.append(factor)
            else:
                axes.append(Axis((factor,), i, stop))
            i = stop
    for at, what, close in ((bracket, "bracket", "]"), (paren, "parenthesis", ")")):
        if at >= 0:
            raise fail(f"a {what} is never closed", at, f"add {close} after the last axis of the group.")
    if not any(f.shared for a in axes for f in a.factors):
        raise user_error(
            f"pattern {text!r} has no brackets.",
            expected="brackets around the axes that share one mean",
            fix=f"for example {_example(axes)!r}.",
        )
    return Pattern(text, tuple(axes))


def _example(axes: list[Axis]) -> str:
    names = [f.name for a in axes for f in a.factors]
    return " ".join([*names[:-1], f"[{names[-1]}]"]) if names else "b l [d]"
