"""All that the rules look at: one run of a model, with numbers, and what its user gave beside it."""

from __future__ import annotations

import inspect as signatures
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normkit.inspect.batch import could_not_run, prepare, unwrap
from normkit.inspect.graph import Residual
from normkit.inspect.inspection import Inspection, run
from normkit.inspect.record import Node
from normkit.inspect.sites import Site
from normkit.inspect.trace import tensors_of, trace
from normkit.inspect.untouched import untouched

__all__ = ["Case", "Gradients", "Measures", "Seen", "examine_run", "gradients"]

SAMPLE = 4096  # of a tensor, for a median
NO_PADDING = re.compile("masked|global|head|special|loss")  # masks of something else
FEW = 1 << 20  # numbers that one thread looks at


@dataclass
class Measures:
    """Of a norm's input, or of a residual sum."""

    rms: float
    largest: float
    median: float  # of absolute values
    variance: float | None = None  # the median over groups of what a norm divides by the root of
    terms: dict[int, float] = field(default_factory=dict)  # of a sum: the rms of what was added, by node
    channel: tuple[Tensor, Tensor, int] | None = None  # of a BatchNorm: mean and variance, and of how many


class Seen:
    """Takes down numbers while a model runs, and the tensors that a rule will need."""

    def __init__(self, *, keep_outputs: bool = False, length: int | None = None) -> None:
        self.measures: dict[int, Measures] = {}
        self.outputs: dict[int, Tensor] = {}
        self.inputs: dict[int, Tensor] = {}
        self.keep_outputs = keep_outputs
        self.length = length  # of padded sequences: inputs are kept of norms that may look beyond a token

    @torch.no_grad()
    def __call__(self, node: Node, output: Tensor, read: list[Tensor]) -> None:
        if output.is_meta or not output.is_floating_point() or output.numel() == 0:
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(
            1 if output.numel() < FEW else threads
        )  # on a busy machine, waiting is the cost
        try:
            self._take_down(node, output, read)
        finally:
            torch.set_num_threads(threads)

    def _take_down(self, node: Node, output: Tensor, read: list[Tensor]) -> None:
        if node.norm is None:
            found = _measure(output)
            found.terms = {
                i: _rms(t) for i, t in zip(node.inputs, read, strict=False) if t.is_floating_point()
            }
            self.measures[node.index] = found
            return
        x = read[0]
        found = _measure(x)
        spec = node.norm.spec
        if not node.norm.is_function and not spec.gate:
            found.variance = _variance(x, spec.axes, spec.groups, spec.centered)
        if spec.running and x.ndim >= 2:
            kept = [a % x.ndim for a in range(x.ndim) if a - x.ndim not in spec.axes]
            over = [a for a in range(x.ndim) if a not in kept]
            wide = x.double() if x.device.type == "cpu" else x.float()
            count = x.numel() // max(1, wide.mean(over).numel())
            found.channel = (wide.mean(over), wide.var(over, correction=0), count)
        self.measures[node.index] = found
        if self.keep_outputs:
            self.outputs[node.index] = output.detach().clone()
        alone = spec.axes == (-1,) and x.shape[-1] != self.length and not node.norm.is_function
        if self.length is not None and not alone:
            self.inputs[node.index] = x.detach().clone()


def _rms(x: Tensor) -> float:
    wide = torch.promote_types(x.dtype, torch.float32)
    return float(torch.linalg.vector_norm(x, dtype=wide)) / max(1, x.numel()) ** 0.5


def _measure(x: Tensor) -> Measures:
    flat = x.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // SAMPLE)].float().abs()
    low, high = (float(t) for t in torch.aminmax(flat))
    return Measures(_rms(x), max(abs(low), abs(high)), float(sample.median()))


def _variance(x: Tensor, axes: tuple[int, ...], groups: int | None, centered: bool) -> float | None:
    if any(-a > x.ndim for a in axes):
        return None
    x = x.detach().float()
    over: tuple[int, ...] = axes
    if groups is not None:
        axis, ndim = axes[0] + x.ndim, x.ndim
        x = x.unflatten(axis, (groups, x.shape[axis] // groups))
        over = tuple(a + ndim + 1 if a != axes[0] else axis + 1 for a in axes)
    squares = x.var(over, correction=0) if centered else x.square().mean(over)
    return float(squares.reshape(-1).median())


@dataclass
class Gradients:
    """Of a loss: the norms of gradients at the residual sums, the largest gradient of each parameter, and
    where those of vectors are 0."""

    stream: list[tuple[int, float]]
    parameters: dict[str, float | None]
    zeros: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Case:
    """See ``doctor``: its arguments, and what one run showed."""

    model: nn.Module
    inspection: Inspection
    seen: Seen
    batch: Any
    is_synthetic: bool  # the batch was made up
    optimizer: Any = None
    gradients: Gradients | None = None
    reference: Case | None = None
    mask: Tensor | None = None  # (batch, length), True where a token is real
    wrapped: nn.Module | None = None  # the model as it was given: compiled, or under DDP

    @property
    def sites(self) -> list[Site]:
        return self.inspection.sites

    @property
    def residuals(self) -> list[Residual]:
        return self.inspection.residuals

    def measures(self, site: Site) -> Measures | None:
        return self.seen.measures.get(site.nodes[0])

    def line(self, node: int) -> str:
        return self.inspection.graph.nodes[node].line


def examine_run(model: nn.Module, batch: Any, **given: Any) -> Case:
    """Run the model once, and take down what happens."""
    compared = given.get("reference") is not None or given.pop("keep_outputs", False)
    mask = padding_mask(unwrap(model), batch) if isinstance(model, nn.Module) else None
    seen = Seen(keep_outputs=bool(compared), length=None if mask is None else mask.shape[1])
    with torch.no_grad():
        inspection = run(model, batch, seen)
    return Case(inspection.model, inspection, seen, batch, batch is None, mask=mask, wrapped=model, **given)


def padding_mask(model: nn.Module, batch: Any) -> Tensor | None:
    """The mask in a batch with padding: 0 and 1, or booleans, one for each token; or made from lengths."""
    named = _named(model, batch)
    for name, value in named.items():
        if value.ndim in (3, 4) and value.numel() == value.shape[0] * value.shape[-1]:
            value = value.reshape(value.shape[0], value.shape[-1])  # (batch, 1, length)
        if "mask" not in name or NO_PADDING.search(name) or value.ndim != 2 or value.is_meta:
            continue
        if value.dtype != torch.bool and not bool(((value == 0) | (value == 1)).all()):
            continue
        real = ~value.bool() if "padding" in name else value.bool()
        if bool(real.any()) and not bool(real.all()):
            return real
    for name, value in named.items():
        is_count = value.ndim == 1 and not value.is_floating_point() and value.dtype != torch.bool
        if "len" not in name or not is_count or value.is_meta or len(value) < 2:
            continue
        longest = int(value.max())
        others = [t.shape for t in named.values() if t.ndim > 1 and len(t) == len(value)]
        if 0 < int(value.min()) < longest and any(longest in shape[1:] for shape in others):
            return torch.arange(longest, device=value.device) < value[:, None]
    return None


def _named(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """The tensors of a batch, by the names of the model's arguments."""
    if isinstance(batch, (tuple, list)):
        try:
            batch = signatures.signature(model.forward).bind_partial(*batch).arguments
        except (TypeError, ValueError):
            return {}
    if not isinstance(batch, Mapping):
        return {}
    return {str(name): value for name, value in batch.items() if isinstance(value, Tensor)}


def gradients(case: Case, loss: Callable[..., Any] | None) -> Gradients | None:
    """Of the user's loss, or of the one that the model returns; None where there is none."""
    model = case.model
    own = getattr(case.inspection.trace.result, "loss", None)
    if (loss is None and not isinstance(own, Tensor)) or any(p.is_meta for p in model.parameters()):
        return None
    takes = list(signatures.signature(loss).parameters) if loss is not None else []
    args, kwargs = call = prepare(model, case.batch)
    sums: list[Tensor] = []
    nodes: list[int] = []
    wanted = {r.node for r in case.residuals}

    def keep(node: Node, output: Tensor, read: list[Tensor]) -> None:
        if node.index in wanted and node.kind == "add" and output.requires_grad:
            sums.append(output)
            nodes.append(node.index)

    def forward() -> Any:
        if takes[:1] == ["model"]:
            return loss(model, case.batch)  # type: ignore[misc]  # it takes arguments, so it is there
        result = model(*args, **kwargs)
        if loss is None:
            return getattr(result, "loss", None)
        return loss(result, case.batch) if len(takes) > 1 else loss(result)

    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with untouched(model), torch.enable_grad():
        try:
            value = trace(model, forward, inputs=call, observe=keep).result
            if not isinstance(value, Tensor) or not value.requires_grad or value.numel() != 1:
                return None
            found = torch.autograd.grad(value, [*sums, *parameters.values()], allow_unused=True)
        except Exception as error:
            raise could_not_run(model, call, error) from error
    stream = [(node, float(g.norm())) for node, g in zip(nodes, found, strict=False) if g is not None]
    by_name = dict(zip(parameters, found[len(sums) :], strict=True))
    largest: dict[str, float | None] = {
        n: None if g is None else float(g.abs().max()) if g.numel() else 0.0 for n, g in by_name.items()
    }
    zeros = {n: g == 0 for n, g in by_name.items() if g is not None and g.ndim == 1}
    return Gradients(stream, largest, zeros)


def named_tensors(case: Case) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of the norms."""
    for site in case.sites:
        if not site.is_function:
            for name, tensor in (*site.module.named_parameters(), *site.module.named_buffers()):
                yield f"{site.path}.{name}", tensor


__all__ += ["named_tensors", "padding_mask", "tensors_of"]
