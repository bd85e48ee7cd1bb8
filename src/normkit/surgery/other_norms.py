"""Another norm in the place of one, with its gain and bias. These change the function: the drift is measured,
and it takes some training to win back what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normkit import checks, norms
from normkit.inspect.edit import Edit
from normkit.inspect.inspection import run
from normkit.surgery.center_to_rms import is_layer_norm, rms_like
from normkit.surgery.certificate import Certificate, Left
from normkit.surgery.changes import replace_module
from normkit.surgery.operating import Plan, batch_for, checked_model, evaluating, operate
from normkit.surgery.subject import Norm, find_norms

__all__ = ["bn_to_group", "ln_to_rms", "to_dyt"]

RECIPE = (
    "To win back what it costs, train on: all parameters, 1 to 5 % of the steps of the first training, a "
    "tenth of its peak learning rate, {warmup}; compare the validation loss with the model before."
)


def bn_to_group(
    model: nn.Module, batch: Any = None, *, groups: int = 32, dry_run: bool = False
) -> Certificate:
    """Replace BatchNorms by GroupNorms with their gains and biases, in place. It changes the function.

    Args:
        batch: as the model takes it; None: a random one, where a config says what the model reads.
        groups: at most so many; the largest number that divides the channels and leaves a group more than one
            value.

    Example:
        >>> import normkit as nk
        >>> model = nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48))
        >>> certificate = nk.surgery.bn_to_group(model, torch.randn(2, 3, 5, 5))
        >>> model[1].num_groups, certificate.exact
        (24, False)

    Reference: Wu & He 2018, arXiv:1803.08494.
    """
    model = checked_model("bn_to_group", model)
    checks.integer(groups, what="groups=", least=1)
    batch = batch_for(model, batch)
    notes = [
        RECIPE.format(warmup="with a warm-up"),
        "What the running statistics knew is lost: the first losses will be high.",
    ]
    return _replace("bn_to_group", model, batch, _is_batch_norm, partial(_group_norm, groups), notes, dry_run)


def _is_batch_norm(norm: Norm) -> str | None:
    if not norm.spec.running:
        return ""
    return "it is a function, and no module that could be replaced" if norm.is_function else None


def _group_norm(most: int, norm: Norm, old: nn.Module) -> nn.Module:
    axis = norm.axes[0]
    channels = norm.shape[axis]
    values = math.prod(norm.shape[1:])
    fitting = [g for g in range(1, min(most, channels) + 1) if channels % g == 0 and values // g > 1]
    gain, bias = _own(norm, old)
    new = norms.GroupNorm(
        fitting[-1] if fitting else 1, channels, norm.spec.eps, gain is not None or bias is not None
    )
    _carry(new, gain, bias)
    rest = [m for m in old._modules.values() if m is not None and not isinstance(m, nn.Identity)]
    return nn.Sequential(new, *rest) if rest else new


def ln_to_rms(model: nn.Module, batch: Any = None, *, dry_run: bool = False) -> Certificate:
    """Replace LayerNorms by RMSNorms with their gains and biases, in place: the mean is no longer subtracted.
    It changes the function; where ``center_to_rms`` can be done, that is exact.

    A bias that is not 0 stays: such a norm becomes ``normkit.Norm`` with ``center=False``.
    """
    model = checked_model("ln_to_rms", model)
    batch = batch_for(model, batch)
    notes = [RECIPE.format(warmup="no warm-up needed"), "Where it can be done, center_to_rms is exact."]
    return _replace("ln_to_rms", model, batch, _layer_norm_or_why, _rms, notes, dry_run)


def _layer_norm_or_why(norm: Norm) -> str | None:
    return "" if norm.spec.kind != "layer" else is_layer_norm(norm)


def _rms(norm: Norm, old: nn.Module) -> nn.Module:
    _, bias = _own(norm, old)
    return rms_like(norm, bias is not None and bool(bias.any()), old)


def to_dyt(model: nn.Module, batch: Any = None, *, dry_run: bool = False) -> Certificate:
    """Replace LayerNorms and RMSNorms by DyT, tanh(α x) γ + β, with their gains and biases, in place. It
    changes the function.

    α of each is the one that comes nearest to the norm on the batch: the least squared difference of
    tanh(α x) and the normalised x.

    Reference: Zhu et al. 2025, arXiv:2503.10622.
    """
    model = checked_model("to_dyt", model)
    batch = batch_for(model, batch)
    alphas = _fit(model, batch)
    notes = [
        RECIPE.format(warmup="with a warm-up"),
        "α was fitted on this batch. A stream that grows with depth saturates tanh: look at the drift.",
    ]
    return _replace("to_dyt", model, batch, _row_norm_or_why, partial(_dyt, alphas), notes, dry_run)


def _row_norm_or_why(norm: Norm) -> str | None:
    if norm.spec.kind not in ("layer", "rms"):
        return ""
    if norm.is_function:
        return "it is a function, and no module that could be replaced"
    if (
        norm.axes != norm.spec.axes
        or len(norm.axes) != 1
        or norm.spec.gate is not None
        or norm.has_activation
    ):
        return "it is a norm of another kind"
    return None


def _dyt(alphas: dict[str, float], norm: Norm, old: nn.Module) -> nn.Module:
    gain, bias = _own(norm, old)
    size = norm.shape[norm.axes[0]]
    like = {"device": gain.device, "dtype": gain.dtype} if gain is not None else {}
    has_any = gain is not None or bias is not None
    new = norms.DyT(
        size,
        alphas.get(norm.path, 0.5),
        has_any,
        bias is not None,
        axis=norm.axes[0],
        **like,  # type: ignore[arg-type]
    )
    if gain is not None and norm.spec.gain == "1 + w":
        gain = nn.Parameter(gain.detach() + 1, requires_grad=gain.requires_grad)
    _carry(new, gain, bias)
    return new


@torch.no_grad()
def _fit(model: nn.Module, batch: Any) -> dict[str, float]:
    """α by path: the best of a fine grid over six powers of ten."""
    found: dict[str, float] = {}
    by_path: dict[str, Norm] = {}

    def observe(node: Any, output: Tensor, read: list[Tensor]) -> None:
        norm = by_path.get(node.norm.path) if node.norm is not None else None
        if norm is None or norm.path in found or not read:
            return
        x = read[0].detach().double().movedim(norm.axes[0], -1)
        x = x.reshape(-1, x.shape[-1])[:256]
        deviations = x - x.mean(-1, keepdim=True) if norm.spec.centered else x
        target = deviations / (deviations.square().mean(-1, keepdim=True) + norm.spec.eps).sqrt()
        grid = torch.logspace(-4, 2, 121, dtype=torch.float64, device=x.device)
        losses = [float((torch.tanh(a * x) - target).square().mean()) for a in grid]
        found[norm.path] = float(grid[min(range(len(grid)), key=losses.__getitem__)])

    with evaluating(model):
        by_path |= {
            norm.path: norm for norm in find_norms(run(model, batch)) if _row_norm_or_why(norm) is None
        }
        run(model, batch, observe)
    return found


def _own(norm: Norm, old: nn.Module) -> tuple[nn.Parameter | None, nn.Parameter | None]:
    """Gain and bias of the module itself."""
    own = dict(old.named_parameters())
    names = (n.removeprefix(f"{norm.path}.") if n is not None else None for n in (norm.gain, norm.bias))
    gain, bias = (own.get(n) if n is not None else None for n in names)
    return gain, bias


def _carry(new: nn.Module, gain: nn.Parameter | None, bias: nn.Parameter | None) -> None:
    """The very parameters, where there are any."""
    for name, value in (("weight", gain), ("bias", bias)):
        mine = new._parameters.get(name)
        if value is not None and mine is not None:
            same = value.shape == mine.shape
            new._parameters[name] = value if same else nn.Parameter(value.detach().reshape(mine.shape))


def _replace(
    surgery: str,
    model: nn.Module,
    batch: Any,
    why_not: Callable[[Norm], str | None],
    build: Callable[[Norm, nn.Module], nn.Module],
    notes: list[str],
    dry_run: bool,
) -> Certificate:
    """``why_not``: None if it is to be replaced, "" if it is not meant, else the reason."""
    with evaluating(model), torch.no_grad():
        found = find_norms(run(model, batch))
    verdicts = [(norm, why_not(norm)) for norm in found]
    chosen = [norm for norm, why in verdicts if why is None]
    left = [Left(norm.path, why) for norm, why in verdicts if why]

    def edits(target: nn.Module) -> list[Edit]:
        made = []
        for norm in chosen:
            new = build(norm, target.get_submodule(norm.path))
            what = f"{type(norm.module).__name__} becomes {type(new).__name__}"
            made.append(replace_module(target, norm.path, what, partial(build, norm)))
        return made

    plan = Plan(surgery, edits, found, left, notes if chosen else [], exact=False)
    plan.is_refused = bool(left) and not chosen
    return operate(model, batch, plan, dry_run)
