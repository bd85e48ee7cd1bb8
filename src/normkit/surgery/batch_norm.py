"""BatchNorms in trained models: frozen, recalibrated, synchronised over processes, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normkit import checks, norms
from normkit.errors import NormkitError, user_error
from normkit.inspect.batch import could_not_run, prepare
from normkit.inspect.edit import Edit
from normkit.inspect.untouched import untouched
from normkit.norms.sync_batch_norm import _PLAIN
from normkit.surgery.become import become, frozen, local, synced
from normkit.surgery.certificate import Certificate
from normkit.surgery.changes import set_requires_grad, tensor_at, write
from normkit.surgery.operating import Plan, batch_for, checked_model, operate, told

__all__ = ["bn_to_sync", "freeze_bn", "recalibrate_bn", "sync_to_bn"]


def freeze_bn(
    model: nn.Module, batch: Any = None, *, affine: bool = True, dry_run: bool = False
) -> Certificate:
    """Freeze the BatchNorms of a model, in place: running statistics stop for good, ``model.train()`` or not.

    Evaluation computes the same; training computes with the running statistics, too. Classes derived from
    BatchNorm do all that they did.

    Args:
        batch: as the model takes it; None: a random one, where a config says what the model reads.
        affine: whether gains and biases are frozen, too.

    Example:
        >>> import normkit as nk
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        >>> _ = nk.surgery.freeze_bn(model, torch.randn(2, 3, 5, 5))
        >>> model.train()[1].training
        False
    """
    model = checked_model("freeze_bn", model)
    found = [p for p, m in _batch_norms(model) if getattr(m, "running_mean", None) is not None]

    def edits(target: nn.Module) -> list[Edit]:
        made = []
        for path in found:
            module = target.get_submodule(path)
            if not _is_made(module, "Frozen"):
                made.append(become(target, path, "stays in evaluation mode", frozen, training=False))
            names = [f"{path}.{n}".lstrip(".") for n, p in module.named_parameters() if p.requires_grad]
            made += [set_requires_grad(target, name, False) for name in names if affine]
        return made

    notes = [] if found else ["It has no BatchNorm with running statistics."]
    plan = Plan("freeze_bn", edits, notes=notes, arguments={"affine": affine})
    return operate(model, batch_for(model, batch), plan, dry_run)


def _batch_norms(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(path, module) for path, module in model.named_modules() if isinstance(module, _BatchNorm)]


def _is_made(module: nn.Module, name: str) -> bool:
    return type(module).__name__.startswith(name) and hasattr(type(module), "of")


def bn_to_sync(
    model: nn.Module, batch: Any = None, *, process_group: Any = None, dry_run: bool = False
) -> Certificate:
    """Let the BatchNorms of a model share their statistics over all processes in training, in place.

    Plain ones become ``normkit.SyncBatchNorm``, which runs on any device. A class derived from BatchNorm
    stays what it is, with its activation and all else, and takes the statistics of all processes.

    Args:
        process_group: the processes that share them; None for all.
    """
    model = checked_model("bn_to_sync", model)
    found = [
        (path, type(module) in _PLAIN)
        for path, module in _batch_norms(model)
        if not isinstance(module, (norms.SyncBatchNorm, nn.SyncBatchNorm)) and not _is_made(module, "Synced")
    ]

    def edits(target: nn.Module) -> list[Edit]:
        made = []
        for path, is_plain in found:
            what = "becomes normkit.SyncBatchNorm" if is_plain else "takes the statistics of all processes"
            kind = _sync_kind if is_plain else synced
            made.append(become(target, path, what, kind, process_group=process_group))
        return made

    return operate(model, batch_for(model, batch), Plan("bn_to_sync", edits), dry_run)


def _sync_kind(kind: type[nn.Module]) -> type[nn.Module]:
    return norms.SyncBatchNorm


def sync_to_bn(model: nn.Module, batch: Any = None, *, dry_run: bool = False) -> Certificate:
    """The way back: BatchNorms with the statistics of their own process, in place, as one device wants them.

    torch's SyncBatchNorm and ours become BatchNorm of as many axes as the batch shows; a class derived from
    torch's SyncBatchNorm stays what it is but for its statistics.
    """
    model = checked_model("sync_to_bn", model)
    batch = batch_for(model, batch)
    found = [
        (path, module)
        for path, module in _batch_norms(model)
        if isinstance(module, (norms.SyncBatchNorm, nn.SyncBatchNorm)) or _is_made(module, "Synced")
        if not _is_made(module, "Local")
    ]
    ndims = _input_ndims(model, batch, [path for path, _ in found])

    def edits(target: nn.Module) -> list[Edit]:
        made = []
        kind: Callable[[type[nn.Module]], type[nn.Module]]
        for path, old in found:
            if _is_made(old, "Synced"):
                kind, what = _as_before, f"becomes {type(old).of.__name__} again"  # type: ignore[attr-defined]
            elif type(old) in (nn.SyncBatchNorm, norms.SyncBatchNorm):
                ours = isinstance(old, norms.SyncBatchNorm)
                plain: type[nn.Module] = getattr(norms if ours else nn, f"BatchNorm{ndims[path]}d")
                kind, what = partial(_constant, plain), f"becomes {plain.__name__}"
            else:
                kind, what = local, "takes the statistics of its own process"
            made.append(become(target, path, what, kind))
        return made

    return operate(model, batch, Plan("sync_to_bn", edits), dry_run)


def _as_before(kind: type[nn.Module]) -> type[nn.Module]:
    found: type[nn.Module] = kind.of  # type: ignore[attr-defined]
    return found


def _constant(kind: type[nn.Module], _: type[nn.Module]) -> type[nn.Module]:
    return kind


def _input_ndims(model: nn.Module, batch: Any, paths: list[str]) -> dict[str, int]:
    """How many axes beside batch and channels each module's input has: 1 (or none), 2 or 3."""
    found = dict.fromkeys(paths, 2)
    hooks = []
    for path in paths:

        def look(module: nn.Module, args: Any, path: str = path) -> None:
            found[path] = max(args[0].ndim - 2, 1)

        hooks.append(model.get_submodule(path).register_forward_pre_hook(look))
    try:
        _run(model, batch, training=False)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _run(model: nn.Module, batch: Any, *, training: bool) -> None:
    args, kwargs = call = prepare(model, batch)
    try:
        with torch.no_grad(), untouched(model):
            model.train(training)
            model(*args, **kwargs)
    except NormkitError:
        raise
    except Exception as error:
        raise could_not_run(model, call, error) from error


def recalibrate_bn(
    model: nn.Module, loader: Iterable[Any], *, batches: int | None = None, dry_run: bool = False
) -> Certificate:
    """Measure running statistics anew, on data: mean and variance of all numbers that each BatchNorm sees.

    Everything else is in evaluation mode (no dropout), BatchNorms normalise by each batch, as in training.
    The batches' means and variances are put together by their counts, so that the last batch may be smaller:

        mean = Σ nᵢ mᵢ / N,   var = (Σ (nᵢ − 1) vᵢ + Σ nᵢ (mᵢ − mean)²) / (N − 1)

    It changes what the model computes in evaluation.

    Args:
        loader: batches as the model takes them; of (inputs, targets), the inputs.
        batches: how many of them; None for all.

    Reference: Wu & Johnson 2021, Rethinking "Batch" in BatchNorm, arXiv:2105.07576.
    """
    model = checked_model("recalibrate_bn", model)
    found = {p: m for p, m in _batch_norms(model) if getattr(m, "running_mean", None) is not None}
    first, statistics = _statistics(model, found, loader, batches)

    def edits(target: nn.Module) -> list[Edit]:
        made = []
        for path, (mean, var) in statistics.items():
            for name, value in (("running_mean", mean), ("running_var", var)):
                full = f"{path}.{name}".lstrip(".")
                made.append(write(target, full, "is measured anew", partial(_given, value)))
        return made

    notes = [] if found else ["It has no BatchNorm with running statistics."]
    missed = sorted(found.keys() - statistics.keys())
    notes += [f"Not reached, so as before: {', '.join(missed[:4])}."] if missed else []
    return operate(model, first, Plan("recalibrate_bn", edits, notes=notes, exact=False), dry_run)


def _given(value: Tensor, old: Tensor) -> Tensor:
    return value.to(old)


Moments = tuple[Tensor, Tensor, int]  # mean, sum of squared deviations, count


def _statistics(
    model: nn.Module, found: dict[str, nn.Module], loader: Iterable[Any], batches: int | None
) -> tuple[Any, dict[str, tuple[Tensor, Tensor]]]:
    """The first batch; mean and variance by path."""
    if batches is not None:
        checks.integer(batches, what="batches=", least=1)
    totals: dict[str, Moments] = {}
    hooks = [m.register_forward_hook(partial(_add, totals, path)) for path, m in found.items()]
    first, number = None, 0
    try:
        for number, batch in enumerate(loader, 1):
            first = batch if number == 1 else first
            told(f"batch {number}")
            _measure(model, found, batch)
            if number == batches:
                break
    finally:
        for hook in hooks:
            hook.remove()
    if number == 0:
        raise user_error("recalibrate_bn got a loader without batches.", expected="at least one")
    return first, {path: (mean, squares / max(n - 1, 1)) for path, (mean, squares, n) in totals.items()}


def _measure(model: nn.Module, found: dict[str, nn.Module], batch: Any) -> None:
    """One batch; the model is as before. With a momentum of 1, the running statistics are the batch's."""
    args, kwargs = call = prepare(model, batch)
    with torch.no_grad(), untouched(model):
        model.eval()
        for module in found.values():
            nn.Module.train(module, True)
            module.momentum = 1.0  # type: ignore[assignment]  # of a BatchNorm
        try:
            model(*args, **kwargs)
        except NormkitError:
            raise
        except Exception as error:
            raise could_not_run(model, call, error) from error


def _add(totals: dict[str, Moments], path: str, module: nn.Module, args: Any, output: Any) -> None:
    """Chan's way to put two sets of numbers together."""
    mean, var = (tensor_at(module, name).double() for name in ("running_mean", "running_var"))
    n = args[0].numel() // mean.numel()
    if not bool(mean.isfinite().all() and var.isfinite().all()):
        raise user_error(f"{path} sees numbers that are not finite.", fix="leave such batches out.")
    old_mean, old_squares, old_n = totals.get(path, (torch.zeros_like(mean), torch.zeros_like(var), 0))
    total = old_n + n
    delta = mean - old_mean
    squares = old_squares + var * (n - 1) + delta.square() * (old_n * n / total)
    totals[path] = old_mean + delta * (n / total), squares, total
