"""Processes hold different norms.

What it finds: under torch.distributed, parameters or buffers of norms that are not the same in all
processes. Shards (DTensor) are left out, and norms that not all processes called. So are buffers that DDP
broadcasts before each forward; where no DDP can be asked, those that move are information.

Why it matters: replicas are meant to be one model. Running statistics drift apart without a word where
buffers are not broadcast; gains do where a process loaded another checkpoint. What is saved is that of one
process.

Example:
    DistributedDataParallel(model, broadcast_buffers=False)       # BatchNorm inside

Fix: SyncBatchNorm, or broadcast them from one process: ``report.fix()`` does, if all processes call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from normkit.doctor.case import Case, named_tensors
from normkit.doctor.rule import Found
from normkit.inspect.edit import Edit


def check(case: Case) -> Iterator[Found]:
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return
    named = {
        n: t for n, t in named_tensors(case) if type(t).__name__ != "DTensor" and not t.is_meta and t.numel()
    }
    lines = {s.path: s.line for s in case.sites}
    buffers = _buffers(case)
    are_broadcast = _are_broadcast(case.wrapped)
    for name in _in_all_processes(named):
        tensor = named[name]
        if name in buffers and are_broadcast:
            continue
        mine = tensor.detach().to(torch.float64 if tensor.device.type == "cpu" else torch.float32)
        low, high = mine.clone(), mine.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        off = float((high - low).max())
        if off > 0 or off != off:
            yield Found(
                where=name,
                measured=off,
                expected="0: the same numbers in all processes",
                message=f"it differs by up to {off:.3g} between {dist.get_world_size()} processes.",
                fix="use normkit.SyncBatchNorm, or broadcast it from one process.",
                line=lines.get(name.rpartition(".")[0], ""),
                severity="info" if buffers.get(name) and are_broadcast is None else None,
                edit=broadcast(name, tensor),
            )


def _in_all_processes(named: dict[str, Tensor]) -> list[str]:
    """Names that all have, with the same shape: which norms are called may depend on data."""
    mine = {name: tuple(tensor.shape) for name, tensor in named.items()}
    all_of_them: list[dict[str, tuple[int, ...]]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(all_of_them, mine)
    first, *others = all_of_them
    return [name for name, shape in first.items() if all(other.get(name) == shape for other in others)]


def _buffers(case: Case) -> dict[str, bool]:
    """Of norms, and whether they move."""
    own = [s for s in case.sites if not s.is_function]
    return {f"{s.path}.{n}": s.training for s in own for n, _ in s.module.named_buffers()}


def _are_broadcast(model: nn.Module | None) -> bool | None:
    """By DDP, from the first process, before each forward; None if there is no DDP to ask."""
    while model is not None:
        if isinstance(model, DistributedDataParallel):
            return bool(model.broadcast_buffers)
        model = getattr(model, "_orig_mod", None)  # compiled
    return None


def broadcast(name: str, tensor: Tensor) -> Edit:
    def make() -> Callable[[], None]:
        before = tensor.detach().clone()
        dist.broadcast(tensor.data, 0)

        def undo() -> None:
            tensor.data.copy_(before)

        return undo

    return Edit(name, "gets the numbers of process 0", make)
