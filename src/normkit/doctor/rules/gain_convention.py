"""w is read as 1 + w, or the reverse.

What it finds: against a reference, a norm whose gain is 1 + w there and w here.

Why it matters: the same checkpoint gives another model. Gemma, and Qwen3-Next among others, store w for a
gain of 1 + w; nothing raises, the output is a little off everywhere, and perplexity is.

Example:
    gemma = RMSNorm(dim)                   # multiplies by weight; the checkpoint means 1 + weight

Fix: normkit.RMSNorm(dim, zero_centered_weight=True), or add 1 to the weights once.

References: pytorch/executorch#19901, Blaizzy/mlx-vlm#2041.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.doctor.rules.against_reference import pairs
from normkit.inspect.edit import Edit
from normkit.inspect.sites import Site


def check(case: Case) -> Iterator[Found]:
    for mine, theirs in pairs(case):
        gains = (mine.spec.gain, theirs.spec.gain)
        if gains[0] == gains[1]:
            continue
        shift = 1.0 if gains == ("w", "1 + w") else -1.0 if gains == ("1 + w", "w") else None
        yield at(
            mine,
            abs(shift) if shift is not None else 1.0,
            f"a gain of {gains[1] or 'no gain'}, as in {theirs.path}",
            f"its gain is {gains[0] or 'absent'}, and the reference's {gains[1] or 'absent'}: "
            "off by 1 in every channel.",
            "use normkit.RMSNorm(..., zero_centered_weight=True), or shift the weights by 1 once.",
            edit=_shift(mine, theirs, shift) if shift is not None else None,
        )


def _shift(mine: Site, theirs: Site, by: float) -> Edit | None:
    """Only where both hold the same numbers: then they were taken over as they are."""
    a = next((p for n, p in mine.module.named_parameters() if "bias" not in n), None)
    b = next((p for n, p in theirs.module.named_parameters() if "bias" not in n), None)
    if (
        a is None
        or b is None
        or a.is_meta
        or b.is_meta
        or a.shape != b.shape
        or not torch.equal(a.cpu(), b.cpu())
    ):
        return None

    def make() -> Callable[[], None]:
        before = a.detach().clone()
        with torch.no_grad():
            a.add_(by)

        def undo() -> None:
            a.data.copy_(before)

        return undo

    return Edit(mine.path, f"{by:+g} is added to its gain", make)
