"""One run over several processes, as torchrun starts them: DDP or FSDP2, and nothing home-made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from normkit.errors import user_error
from normkit.lab.devices import check_device
from normkit.lab.task import Task, row_count, rows
from normkit.norms import SyncBatchNorm

__all__ = ["Group", "group"]


class Group:
    """The processes that train one model. Alone, everything here is what it would be without."""

    def __init__(self, rank: int = 0, size: int = 1, shard: bool = False, device: str = "cpu") -> None:
        self.rank, self.size, self.shard, self.device = rank, size, shard, device

    @property
    def first(self) -> bool:
        """Whether this process is the one that speaks and writes."""
        return self.rank == 0

    def wrap(self, task: Task, model: nn.Module) -> nn.Module:
        """The model as this group trains it; batch statistics become those of the whole batch."""
        if self.size == 1 and not self.shard:
            return model
        layers = task.layers(model)
        model = SyncBatchNorm.convert_sync_batchnorm(model)
        if not self.shard:
            return DistributedDataParallel(model)
        for layer in layers:
            fully_shard(layer)
        fully_shard(model)
        return model

    def share(self, batch: Any) -> Any:
        """The rows of this process. All draw the same batch, so any number of them sees the same data."""
        if self.size == 1:
            return batch
        each = row_count(batch) // self.size
        return rows(batch, torch.arange(self.rank * each, (self.rank + 1) * each))

    def check(self, batch_size: int) -> None:
        if batch_size % self.size:
            raise user_error(
                f"batch_size={batch_size} on {self.size} processes.",
                expected="the same number of rows for each of them",
                fix=f"--batch-size {(batch_size // self.size + 1) * self.size}",
            )

    def agree(self, loss: float, stop: bool) -> tuple[float, bool]:
        """The mean loss, and whether anyone wants to stop."""
        if self.size == 1:
            return loss, stop
        both = torch.tensor([loss, float(stop)], dtype=torch.float64, device=self.device)
        distributed.all_reduce(both)
        return both[0].item() / self.size, bool(both[1] > 0)

    def state(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of the whole model, with the names that it has in one process."""
        return get_state_dict(model, optimizer, options=self._whole)

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer, saved: tuple[Any, Any]) -> None:
        set_state_dict(
            model, optimizer, model_state_dict=saved[0], optim_state_dict=saved[1], options=self._whole
        )

    @property
    def _whole(self) -> StateDictOptions:
        return StateDictOptions(full_state_dict=True, cpu_offload=self.size > 1)


@contextmanager
def group(*, shard: bool = False, device: str = "cpu") -> Iterator[Group]:
    """The group that torchrun has started this process in, or one of this process alone. On several GPUs each
    process has that of its number."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 and "RANK" not in os.environ:
        if shard:
            raise user_error(
                "--shard in a single process.",
                expected="several, to share the model among",
                fix="torchrun --nproc-per-node 2 -m normkit train --shard …",
            )
        check_device(device)
        yield Group(device=device)
        return
    if device not in ("cpu", "cuda"):
        raise user_error(f"--device {device} under torchrun.", expected="cpu, or cuda: one GPU a process")
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    check_device(device)
    if device != "cpu":
        torch.cuda.set_device(device)
    distributed.init_process_group("gloo" if device == "cpu" else "nccl")
    try:
        yield Group(distributed.get_rank(), size, shard, device)
    finally:
        distributed.destroy_process_group()
