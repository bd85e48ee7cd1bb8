"""A change to a model as a value: it can be read before it is made, checked, and undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normkit.errors import user_error
from normkit.inspect.inspection import run
from normkit.inspect.trace import tensors_of

__all__ = ["Edit", "Edits", "set_attribute"]


@dataclass(frozen=True)
class Edit:
    """One change. ``make`` does it, and returns the function that undoes it.

    where     the path of the module
    what      the change in words: "nn.LayerNorm becomes normkit.LayerNorm"
    """

    where: str
    what: str
    make: Callable[[], Callable[[], None]] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.where or '(the model itself)'}: {self.what}"


class Edits(Sequence[Edit]):
    """Changes that belong together: all are made, or none is.

    Example:
        >>> layer = nn.LayerNorm(4)
        >>> edits = Edits([set_attribute(layer, "norm", "eps", 1e-6)])
        >>> print(edits)  # a dry run: nothing is changed
        norm: eps 1e-05 becomes 1e-06
        >>> edits.apply()
        >>> layer.eps
        1e-06
        >>> edits.undo()
        >>> layer.eps
        1e-05
    """

    def __init__(self, edits: Sequence[Edit]) -> None:
        self.edits = tuple(edits)
        self._undo: list[Callable[[], None]] = []
        self.applied = False

    def __len__(self) -> int:
        return len(self.edits)

    def __getitem__(self, index: Any) -> Any:
        return self.edits[index]

    def __iter__(self) -> Iterator[Edit]:
        return iter(self.edits)

    def __str__(self) -> str:
        return "\n".join(map(str, self.edits))

    def apply(self) -> None:
        if self.applied:
            raise user_error("these edits have been applied.", fix="undo() them first.")
        try:
            for edit in self.edits:
                self._undo.append(edit.make())
        except BaseException:  # Ctrl-C too
            self._back()
            raise
        self.applied = True

    def undo(self) -> None:
        if not self.applied:
            raise user_error("these edits are not applied.", expected="apply() before undo()")
        self._back()
        self.applied = False

    def _back(self) -> None:
        while self._undo:
            self._undo.pop()()

    def verify(self, model: nn.Module, batch: Any = None, *, tolerance: float = 1e-5) -> float:
        """Apply them, and compare the model's outputs on the batch with those before: the largest difference,
        of the largest output. More than ``tolerance``, and everything is undone and an error raised."""
        before = _outputs(model, batch)
        self.apply()
        try:
            error = _difference(before, _outputs(model, batch))
        except BaseException:
            self.undo()
            raise
        if not error <= tolerance:
            self.undo()
            raise user_error(
                f"the edits change the outputs by {error:.2g} of the largest; they were undone.",
                expected=f"at most {tolerance:.2g}",
            )
        return error


def set_attribute(module: nn.Module, where: str, name: str, value: Any) -> Edit:
    """``module.name = value``."""

    def make() -> Callable[[], None]:
        before = getattr(module, name)
        setattr(module, name, value)
        return lambda: setattr(module, name, before)

    return Edit(where, f"{name} {getattr(module, name)} becomes {value}", make)


def _outputs(model: nn.Module, batch: Any) -> list[Tensor]:
    with torch.no_grad():
        found = run(model, batch)
    return [t.detach().double() for t in tensors_of(found.trace.result) if t.is_floating_point()]


def _difference(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    if [t.shape for t in before] != [t.shape for t in after]:
        return float("inf")
    largest = 0.0
    for a, b in zip(before, after, strict=True):
        if a.numel() and not a.is_meta:
            both_nan = a.isnan() & b.isnan()
            off = (a - b).abs().masked_fill(both_nan | (a == b), 0.0).max()
            size = a.nan_to_num(0, 0, 0).abs().max().clamp_min(1e-30)
            largest = max(largest, float(off / size))
    return largest
