"""A bias right before a norm that takes it away again.

What it finds: a convolution or linear layer with a bias whose output goes to a BatchNorm alone, where all
of the bias vanishes, or to a LayerNorm, where its mean does.

Why it matters: parameters, memory and a little time for nothing; a gradient that is 0 but for rounding.

Example:
    nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64))        # bias=False would do

Fix: bias=False; in a trained model, ``report.fix()`` subtracts it from the running mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.inspect.edit import Edit
from normkit.inspect.operations import MOVES
from normkit.inspect.record import Node
from normkit.inspect.sites import Site


def check(case: Case) -> Iterator[Found]:
    graph = case.inspection.graph
    modules = dict(case.model.named_modules())
    times = Counter(call.path for call in graph.trace.calls)
    for site in case.sites:
        if not site.spec.centered or site.is_function or len(site.nodes) != 1:
            continue
        index = graph.nodes[site.nodes[0]].inputs[0]
        while (
            graph.nodes[index].kind in MOVES and len(graph.readers[index]) == 1 and graph.nodes[index].inputs
        ):
            index = graph.nodes[index].inputs[0]
        writer = graph.nodes[index]
        if (
            writer.kind not in ("conv", "linear")
            or len(graph.readers[index]) != 1
            or index in graph.trace.outputs
            or times[writer.module] != 1
        ):
            continue
        module = modules.get(writer.module)
        bias = getattr(module, "bias", None)
        if not isinstance(bias, Tensor) or f"{writer.module}.bias" not in writer.weights or bias.is_meta:
            continue
        all_of_it = _vanishes(site, writer, bias)
        if all_of_it is None:
            continue
        vanishing = bias.detach() if all_of_it else bias.detach().mean()
        yield at(
            site,
            float(vanishing.abs().max()),
            "no bias before a norm that subtracts the mean",
            f"{writer.module}.bias has {bias.numel()} numbers, and "
            f"{'all of it' if all_of_it else 'its mean'} vanishes here.",
            f"build {writer.module} with bias=False."
            if all_of_it
            else f"{writer.module}.bias needs no mean.",
            edit=_drop(site, module, writer.module) if all_of_it and isinstance(module, nn.Module) else None,
        )


def _vanishes(site: Site, writer: Node, bias: Tensor) -> bool | None:
    """All of the bias (one number where the mean is taken), or only its mean; None if neither is sure."""
    spec = site.spec
    if writer.shape != site.shape:  # something was moved
        running = getattr(site.module, "running_mean", None)
        return True if running is not None and running.shape == bias.shape and spec.running else None
    axis = -1 if writer.kind == "linear" else 1 - len(site.shape)
    if spec.groups is None and axis not in spec.axes:
        return True
    return False if spec.axes == (axis,) and spec.groups is None else None


def _drop(site: Site, module: nn.Module, path: str) -> Edit | None:
    running: Tensor | None = getattr(site.module, "running_mean", None)
    bias = module._parameters.get("bias")
    if bias is None or (running is not None and running.shape != bias.shape):
        return None

    def make() -> Callable[[], None]:
        before = running.clone() if running is not None else None
        if running is not None:
            with torch.no_grad():
                running.sub_(bias.to(running.dtype))
        module._parameters["bias"] = None

        def undo() -> None:
            if running is not None and before is not None:
                running.copy_(before)
            module._parameters["bias"] = bias

        return undo

    shift = f", and subtracted from {site.path}.running_mean" if running is not None else ""
    return Edit(path, f"its bias is dropped{shift}", make)
