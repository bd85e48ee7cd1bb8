"""The running statistics are not those of the data.

What it finds: channels whose running mean is more than 5 standard deviations from the batch's, or whose
variance is off by a factor of 2, beyond what a sample of this size explains. A model whose statistics have
not settled yet is left alone.

Why it matters: evaluation uses the running statistics. Where they are of other data (another preprocessing,
weights that moved on, a momentum of 0), the model in evaluation is not the one that was trained.

Fix: recalibrate: reset them, and run some batches in training mode without gradients.

References: Ioffe & Szegedy 2015, arXiv:1502.03167; Li et al. 2016, arXiv:1603.04779 (AdaBN).
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at

Z, LOW, HIGH = 5.0, 0.5, 2.0
SHARE = 0.1  # of all channels
SETTLED = 0.05  # of a running statistic that may still be its first value


def check(case: Case) -> Iterator[Found]:
    for site in case.sites:
        found = case.measures(site)
        mean, var = (getattr(site.module, n, None) for n in ("running_mean", "running_var"))
        if case.is_synthetic or found is None or found.channel is None or mean is None or var is None:
            continue
        batch_mean, batch_var, count = found.channel
        has_mean, has_var = _have_settled(site.module, mean, var)
        if batch_mean.shape != mean.shape or count < 32 or not (has_mean or has_var):
            continue
        mean, var = mean.to(batch_mean), var.to(batch_mean)
        z = (batch_mean - mean).abs() / (var.clamp_min(1e-12)).sqrt()
        z = z - 3 / count**0.5  # what a sample of independent numbers is off by
        ratio = batch_var / var.clamp_min(1e-12)
        noise = 1 + 3 * (2 / count) ** 0.5
        drifted = (z > Z) & has_mean | ((ratio > HIGH * noise) | (ratio < LOW / noise)) & has_var
        share = float(drifted.double().mean())
        if share >= SHARE:
            yield at(
                site,
                share,
                f"means within {Z:g} standard deviations and variances within a factor of {HIGH:g}",
                f"{int(drifted.sum())} of {drifted.numel()} channels, on {count} values: variance "
                f"{float(ratio.median()):.3g} x the running one, mean {float(z.clamp_min(0).median()):.3g} "
                "standard deviations away.",
                "recalibrate: reset_running_stats(), then some batches in training mode without gradients.",
            )


def _have_settled(module: nn.Module, mean: Tensor, var: Tensor) -> tuple[bool, bool]:
    """The mean, and the variance."""
    steps, momentum = getattr(module, "num_batches_tracked", None), getattr(module, "momentum", 0.1)
    if steps is None or int(steps) == 0:  # not trained here: what is not as at the start, somebody has set
        return bool((mean != 0).any()), bool((var != 1).any())
    # without a momentum it is the mean of all batches; with one of 0, nothing will ever move it
    settled = not momentum or (1 - momentum) ** int(steps) <= SETTLED
    return settled, settled
