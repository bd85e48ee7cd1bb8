"""eps is 0 in the dtype the norm runs in.

What it finds: a copy of the norm, called in the dtype of the run with zeros and with tiny numbers, gives
NaN or inf.

Why it matters: float16 has nothing below 6e-8: an eps of 1e-8 or 1e-12 rounds to 0 there, and a row of
zeros (padding, a dead unit, a fresh embedding) divides 0 by 0. One NaN ends a training run.

Example:
    x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-8)      # in float16

Fix: statistics in float32, as torch.nn and normkit take them: x = x.float(), and back in the end.

References: pytorch/pytorch#32137, huggingface/diffusers#13316, deepspeedai/DeepSpeed#581; Micikevicius et
al. 2018, arXiv:1710.03740 (norms in float32).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from normkit.doctor.case import Case
from normkit.doctor.probing import outputs_in
from normkit.doctor.repair import in_float32
from normkit.doctor.rule import Found, at


def check(case: Case) -> Iterator[Found]:
    for site in case.sites:
        for scale in (0.0, float(torch.finfo(site.dtype).tiny) ** 0.5):
            y = outputs_in(site, scale)
            if y is None or bool(torch.isfinite(y).all()):
                continue
            dtype = str(site.dtype).removeprefix("torch.")
            yield at(
                site,
                site.spec.eps,
                f"an eps that is not 0 in {dtype}, or statistics in float32",
                f"an input of {'zeros' if scale == 0 else 'tiny numbers'} gives "
                f"{int((~torch.isfinite(y)).sum())} of {y.numel()} numbers that are NaN or inf in {dtype}.",
                "take its statistics in float32: normkit.swap(model), or x.float() inside of it.",
                edit=in_float32(case, site),
            )
            break
