"""The norms of a model as a surgeon sees them: which parameters they have, and along which axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from normkit.errors import user_error
from normkit.inspect.inspection import Inspection, run
from normkit.inspect.sites import Site
from normkit.inspect.spec import NormSpec
from normkit.surgery.books import Target
from normkit.surgery.flow import Flow
from normkit.surgery.following import follow

__all__ = ["Norm", "Subject", "examine"]


@dataclass(frozen=True)
class Norm:
    """A norm, with the names of its parameters in the model. Calls that share a gain are one norm.

    key     the name of the gain; of the bias, or the path, where there is none
    axes    of its output: those of gain and bias
    """

    key: str
    path: str
    spec: NormSpec
    gain: str | None
    bias: str | None
    axes: tuple[int, ...]
    module: nn.Module = field(repr=False, compare=False)
    is_function: bool = False
    training: bool = False
    shape: tuple[int, ...] = ()
    shares: str = ""  # another norm, with the same gain or bias

    @property
    def has_activation(self) -> bool:
        """timm's: the norm and what follows it are one module."""
        return bool(self.module._modules) and not self.is_function


@dataclass
class Subject:
    """A model on the table: its norms, and what becomes of every number of a run."""

    model: nn.Module
    inspection: Inspection
    norms: list[Norm]
    flow: Flow
    unread: list[str]  # parameters that the run did not read

    def norm(self, key: str) -> Norm:
        return next(norm for norm in self.norms if norm.key == key)


def examine(model: nn.Module, batch: Any) -> Subject:
    """One run for the norms, one for the flow. The model is as before."""
    with torch.no_grad():
        inspection = run(model, batch)
    model = inspection.model
    if _is_sharded(model):
        raise user_error(
            f"{type(model).__name__} has sharded parameters, of which each process holds a part.",
            fix="operate before fully_shard(), or on a full state dict.",
        )
    norms = find_norms(inspection)
    targets: dict[Any, Target] = {}
    for norm in norms:
        followed = None if norm.has_activation else norm.axes
        name = norm.gain or norm.bias if norm.is_function else None
        where: Any = name if norm.is_function else norm.module
        if where is not None:
            targets[where] = Target(norm.key, norm.path, followed)
    flow = follow(inspection, batch, targets)
    read = {use.weight.name for use in flow.uses} | flow.params.keys()
    read |= {use.bias.name for use in flow.uses if use.bias is not None}
    read |= {s.name for s in flow.labels.sources if s.kind == "parameter"}
    read |= {name for norm in norms for name in (norm.gain, norm.bias) if name is not None}
    unread = [name for name, _ in model.named_parameters() if name not in read]
    return Subject(model, inspection, norms, flow, unread)


def find_norms(inspection: Inspection) -> list[Norm]:
    """Those that have parameters or statistics, once each."""
    found: dict[str, Norm] = {}
    for site in inspection.sites:
        gain, bias = _parameters(inspection, site)
        key = gain or bias or site.path
        if key in found and found[key].module is not site.module and not site.is_function:
            key = f"{key} of {site.path}"
        axes = _axes(inspection.model, site, gain or bias)
        if axes is None:
            continue
        found.setdefault(
            key,
            Norm(
                *(key, site.path, site.spec, gain, bias, axes, site.module),
                is_function=site.is_function,
                training=site.training,
                shape=site.shape,
            ),
        )
    return [replace(norm, shares=_other_user(norm, found.values())) for norm in found.values()]


def _other_user(norm: Norm, norms: Iterable[Norm]) -> str:
    own = {norm.gain, norm.bias} - {None}
    return next((n.path for n in norms if n.key != norm.key and own & {n.gain, n.bias}), "")


def _parameters(inspection: Inspection, site: Site) -> tuple[str | None, str | None]:
    """The names of gain and bias, in the words of ``model.named_parameters()``, where they are shared too."""
    names: Sequence[str]
    if site.is_function:
        names = inspection.graph.nodes[site.nodes[0]].weights
    else:
        by_id = {id(p): name for name, p in inspection.model.named_parameters()}
        names = [by_id[id(p)] for p in site.module.parameters() if id(p) in by_id]
    if site.spec.gain and site.spec.bias:
        biases = [n for n in names if n.rpartition(".")[2].lower().startswith(("b", "shift"))] or names[1:]
        gains = [n for n in names if n not in biases]
        return (gains[0], biases[0]) if gains and biases else (None, None)
    if len(names) != 1:
        return None, None
    return (names[0], None) if site.spec.gain else (None, names[0])


def _axes(model: nn.Module, site: Site, name: str | None) -> tuple[int, ...] | None:
    """Of the output, those that gain and bias go along."""
    spec, shape = site.spec, site.shape
    tensor: Tensor | None = model.get_parameter(name) if name is not None else None
    if tensor is None:
        tensor = getattr(site.module, "running_mean", None)
    sizes = [n for n in tensor.shape if n > 1] if tensor is not None else []
    if tensor is None and len(shape) > 2 and 1 - len(shape) not in spec.axes:
        return (1 - len(shape),)  # InstanceNorm without parameters
    if tensor is None or len(sizes) > 1:
        axes = spec.axes if spec.groups is None else spec.axes[:1]
        return axes if tensor is None or [shape[a] for a in axes] == sizes else None
    size = tensor.numel()
    if spec.groups is not None:
        wanted = [spec.axes[0]]
    elif len(spec.axes) == 1 and not spec.running and shape[spec.axes[0]] == size:
        wanted = list(spec.axes)
    else:
        rest = [a for a in range(-len(shape), 0) if a not in spec.axes]
        wanted = [*rest[1:], *rest[:1], *spec.axes]  # the first is the batch
    return next(((a,) for a in wanted if shape[a] == size), None)


def _is_sharded(model: nn.Module) -> bool:
    return any(type(p).__name__ == "DTensor" or hasattr(p, "device_mesh") for p in model.parameters())


def is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and hasattr(module, "running_mean")
