"""Processes hold different norms.

What it finds: under torch.distributed, parameters or buffers of norms that are not the same in all
processes. Shards (DTensor) are left out.

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
from torch import Tensor

from normkit.doctor.case import Case, named_tensors
from normkit.doctor.rule import Found
from normkit.inspect.edit import Edit


def check(case: Case) -> Iterator[Found]:
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return
    named = [
        (n, t)
        for n, t in named_tensors(case)
        if type(t).__name__ != "DTensor" and not t.is_meta and t.numel()
    ]
    lines = {s.path: s.line for s in case.sites}
    for name, tensor in dict(named).items():
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
                edit=broadcast(name, tensor),
            )


def broadcast(name: str, tensor: Tensor) -> Edit:
    def make() -> Callable[[], None]:
        before = tensor.detach().clone()
        dist.broadcast(tensor.data, 0)

        def undo() -> None:
            tensor.data.copy_(before)

        return undo

    return Edit(name, "gets the numbers of process 0", make)
