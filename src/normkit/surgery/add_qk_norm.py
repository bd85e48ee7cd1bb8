"""Norms on queries and keys of a trained model, for taming attention logits.

    q ← q / rms(q) · g,   k ← k / rms(k) · g,      g = the root mean square of that head on data

Before any rotation, each head by itself, as in Qwen3. At the start g makes every head as large as it was on
average, so that what the norm takes away is only how much single tokens differ from that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normkit import functional
from normkit.inspect.batch import prepare
from normkit.inspect.edit import Edit
from normkit.inspect.untouched import untouched
from normkit.surgery.become import normed
from normkit.surgery.certificate import Certificate, Left
from normkit.surgery.flow import Attention, Flow
from normkit.surgery.operating import Plan, batch_for, checked_model, evaluating, operate, told
from normkit.surgery.readers import RefusedError
from normkit.surgery.subject import Subject, examine

__all__ = ["HeadNorm", "add_qk_norm"]

EPS = 1e-6


class HeadNorm(nn.Module):
    """RMSNorm of some heads among the channels of a matrix's output, each with a weight of its own.

    Shape: (..., channels) -> the same. ``channels``: (heads, size), which channels each head has.
    """

    channels: Tensor

    def __init__(self, channels: Tensor, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("channels", channels)
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.channels.flatten()
        heads = x.index_select(-1, flat).unflatten(-1, tuple(self.channels.shape))
        heads = functional.rms_norm(heads, heads.shape[-1:], None, EPS) * self.weight.to(x.dtype)
        return x.index_copy(-1, flat, heads.flatten(-2))

    def extra_repr(self) -> str:
        return f"{self.channels.shape[0]} heads of {self.channels.shape[1]}"


def add_qk_norm(model: nn.Module, batch: Any = None, *, dry_run: bool = False) -> Certificate:
    """Put an RMSNorm on the queries and keys of every attention, in place, with gains measured on the batch.

    The norm stands behind the matrix that makes queries and keys, separate or fused with values, before any
    rotation. It changes the function, by as much as the lengths of single queries and keys differ from their
    head's mean: ``certificate.drift``. Afterwards no logit can grow beyond the product of two gains.

    Args:
        batch: what the gains are measured on; the more tokens of real data, the better. None: a random one,
            where a config says what the model reads.

    Reference: Henry et al. 2020, arXiv:2010.04245; Dehghani et al. 2023, arXiv:2302.05442.
    """
    model = checked_model("add_qk_norm", model)
    batch = batch_for(model, batch)
    return operate(model, batch, plan(model, batch), dry_run)


def plan(model: nn.Module, batch: Any) -> Plan:
    told("following every number")
    with evaluating(model):
        subject = examine(model, batch)
    heads: dict[str, dict[tuple[int, ...], None]] = {}  # by module, in order
    left: list[Left] = []
    for attention in subject.flow.attentions:
        try:
            found = [_heads(subject, attention, side) for side in ("query", "key")]
            for module, sets in found:
                heads.setdefault(module, {}).update(dict.fromkeys(sets))
        except RefusedError as reason:
            left.append(Left(attention.module, str(reason)))
    normed_ = [path for path, m in model.named_modules() if isinstance(m, HeadNorm)]
    if normed_:
        left.append(Left(normed_[0], "it is normed already"))
    elif not subject.flow.attentions:
        left.append(Left("", "no product of queries and keys that come from matrices was seen"))
    tables = {module: torch.tensor(list(sets)) for module, sets in heads.items() if _is_even(sets)}
    gains = _gains(model, batch, tables)
    left += [Left(path, "it returns more than one tensor") for path in tables if path not in gains]
    tables = {path: table for path, table in tables.items() if path in gains}

    def edits(target: nn.Module) -> list[Edit]:
        return [_attach(target, path, table, gains[path]) for path, table in tables.items()]

    notes = [
        "Train on with a tenth of the peak learning rate; gains of queries and keys need no weight decay.",
        "The norms are modules of their own (…qk_norm): an unchanged class does not load them.",
    ]
    return Plan(
        "add_qk_norm",
        edits,
        subject.norms,
        left,
        notes if tables else [],
        exact=False,
        is_refused=bool(left) and not tables,
    )


def _is_even(sets: dict[tuple[int, ...], None]) -> bool:
    return len({len(s) for s in sets}) == 1


def _heads(subject: Subject, attention: Attention, side: str) -> tuple[str, list[tuple[int, ...]]]:
    """The module that makes queries (or keys), and the channels of each head."""
    labels: Tensor = getattr(attention, side)
    if labels.ndim == 4:
        labels = labels[0]
    if labels.ndim != 3:
        raise RefusedError(f"its {side} has {labels.ndim} axes")
    first = labels[:, 0]  # (heads, size) of one token
    leaves = _Leaves(subject.flow)
    found: list[tuple[int, ...]] = []
    modules = set()
    for head in first.tolist():
        channels: set[int] = set()
        for label in head:
            for use, channel in leaves.of(label):
                modules.add(subject.flow.uses[use].module)
                channels.add(channel)
        if len(channels) != len(head):
            raise RefusedError(f"a head of its {side} mixes {len(channels)} channels into {len(head)}")
        found.append(tuple(sorted(channels)))
    if len(modules) != 1:
        raise RefusedError(f"its {side} comes from several matrices")
    distinct = list(dict.fromkeys(found))
    if len({c for head in distinct for c in head}) != sum(len(head) for head in distinct):
        raise RefusedError(f"heads of its {side} share channels")
    module = modules.pop()
    own = [u for u in subject.flow.uses if u.module == module]
    if len({u.weight.name for u in own}) != 1 or any(
        len(u.out_axes) != 1 or u.name.startswith("conv") for u in own
    ):
        raise RefusedError(f"{module} is more than one matrix")
    return module, distinct


@dataclass
class _Leaves:
    """Back through sums (a rotation) and multiples: the matrices' channels that a number is made of."""

    flow: Flow

    def of(self, label: int) -> set[tuple[int, int]]:
        if label <= 0:
            raise RefusedError("what it is made of cannot be followed")
        source = self.flow.labels.source(label)
        at = label - source.start
        if source.kind == "weighted":
            return {(int(source.name), at)}
        if source.kind == "norm":
            raise RefusedError("it is normed already")
        if source.parts is None:
            raise RefusedError("a parameter is added to it")
        parts = source.parts[at].reshape(-1).tolist()
        return set().union(*(self.of(part) for part in parts if part != 0))


@torch.no_grad()
def _gains(model: nn.Module, batch: Any, tables: dict[str, Tensor]) -> dict[str, Tensor]:
    """The root mean square of each head, by module."""
    squares: dict[str, tuple[Tensor, int]] = {}
    hooks = []
    for path, table in tables.items():

        def look(module: nn.Module, args: Any, y: Tensor, path: str = path, table: Tensor = table) -> None:
            if not isinstance(y, Tensor):
                return
            heads = y.detach().double()[..., table.to(y.device)]
            each = heads.square().reshape(-1, *table.shape)
            before, n = squares.get(
                path, (torch.zeros(table.shape[0], dtype=torch.float64, device=y.device), 0)
            )
            squares[path] = before + each.mean(-1).sum(0), n + each.shape[0]

        hooks.append(model.get_submodule(path).register_forward_hook(look))
    args, kwargs = prepare(model, batch)
    try:
        with evaluating(model), untouched(model):
            model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return {path: (total / max(n, 1)).sqrt() for path, (total, n) in squares.items()}


def _attach(model: nn.Module, path: str, table: Tensor, gains: Tensor) -> Edit:
    def make() -> Callable[[], None]:
        module = model.get_submodule(path)
        like = next(module.parameters())
        weight = gains.unsqueeze(1).expand(table.shape).to(like.device, like.dtype).clone()
        before = type(module)
        module.__class__ = normed(before)
        module.add_module("qk_norm", HeadNorm(table.to(like.device), weight))

        def undo() -> None:
            module.__class__ = before
            del module._modules["qk_norm"]

        return undo

    return Edit(path, f"gets an RMSNorm on {len(table)} heads", make)
