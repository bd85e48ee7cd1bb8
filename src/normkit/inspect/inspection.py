"""The norms of a model, one run of it: a sequence of sites that prints as a table and draws itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from normkit.errors import NormkitError, user_error
from normkit.inspect.batch import could_not_run, prepare, unwrap
from normkit.inspect.drawing import draw
from normkit.inspect.graph import Graph, Residual
from normkit.inspect.recognition import SpecCache
from normkit.inspect.record import Trace
from normkit.inspect.sites import Site, find_sites, folded
from normkit.inspect.spec import NormSpec
from normkit.inspect.trace import Observer, trace
from normkit.inspect.untouched import untouched

__all__ = ["Inspection", "Unused", "inspect", "run"]


@dataclass(frozen=True)
class Unused:
    """A norm that is in the model, and was not called. ``owner_ran``: the module that holds it was."""

    path: str
    name: str
    module: nn.Module
    owner_ran: bool


class Inspection(Sequence[Site]):
    """The sites of a model's norms, in the order of their first calls. ``print`` it.

    sites, residuals    the norms; the sums of the residual stream
    unused              norms that the batch did not reach
    trace, graph        the run itself
    """

    def __init__(self, model: nn.Module, run: Trace) -> None:
        self.model = model
        self.trace = run
        self.graph = Graph(run)
        self.sites = find_sites(self.graph)
        self.unused = _unused(model, run)

    @property
    def residuals(self) -> list[Residual]:
        return [r for r in self.graph.residuals if not r.inner]

    def __len__(self) -> int:
        return len(self.sites)

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            found = [site for site in self.sites if site.path == index]
            if not found:
                raise user_error(
                    f"no norm is called at {index!r}.", expected=", ".join(s.path for s in self.sites[:8])
                )
            return found[0]
        return self.sites[index]

    def __str__(self) -> str:
        lines = [
            f"{type(self.model).__name__}: {_count(len(self.sites), 'norm')} on "
            f"{_count(len(self.residuals), 'residual sum')}"
        ]
        rows: dict[tuple[str, str, str, str], list[str]] = {}
        for site in self.sites:
            row = (site.place, site.branch or "", described(site.spec), folded(site.path))
            rows.setdefault(row, []).append(site.path)
        widths = [max((len(row[k]) for row in rows), default=0) for k in range(3)]
        for row, paths in rows.items():
            cells = "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False))
            lines.append(f"  {len(paths):4} x {cells}  {row[3] if len(paths) > 1 else paths[0]}")
        for path in dict.fromkeys(folded(u.path) for u in self.unused):
            lines.append(f"         not called: {path}")
        if self.trace.assumed:
            lines.append(
                "  on the meta device, assumed: " + "; ".join(dict.fromkeys(self.trace.assumed))[:200]
            )
        return "\n".join(lines)

    __repr__ = __str__

    def svg(self) -> str:
        """The residual stream with its norms, layers that are alike once."""
        return draw(self.sites, self.residuals, self.graph)

    def _repr_html_(self) -> str:
        import html

        return f"<div style='overflow-x:auto'>{self.svg()}</div><pre>{html.escape(str(self))}</pre>"


def inspect(model: nn.Module, batch: Any = None) -> Inspection:
    """The norms of a model: what each one computes, where it stands, what it reads and who reads it.

    The model is run once, without gradients, in the mode it is in, and is as before in the end: parameters,
    buffers, gradients, random states, modes and hooks. On the meta device it needs no weights.

    Args:
        batch: a tensor, a tuple of arguments or a dict of keyword arguments, as the model takes them. None: a
            random one, where a config says what the model reads.

    Example:
        >>> import normkit as nk
        >>> print(nk.inspect(nk.LanguageModel(vocab=16, dim=8, depth=2, heads=2)))
        LanguageModel: 5 norms on 4 residual sums
             2 x pre    attention     LayerNorm, eps 1e-05, w + bias  stack.blocks.*.attention.pre
             2 x pre    feed_forward  LayerNorm, eps 1e-05, w + bias  stack.blocks.*.feed_forward.pre
             1 x final  feed_forward  LayerNorm, eps 1e-05, w + bias  stack.final.norm
    """
    with torch.no_grad():
        return run(model, batch)


def run(model: nn.Module, batch: Any = None, observe: Observer | None = None) -> Inspection:
    """As ``inspect``, with gradients as they are switched outside; see ``trace`` for ``observe``."""
    if not isinstance(model, nn.Module):
        raise user_error(f"inspect got {type(model).__name__}.", expected="a torch.nn.Module")
    model = unwrap(model)
    lazy = (UninitializedParameter, UninitializedBuffer)
    if any(isinstance(t, lazy) for t in (*model.parameters(), *model.buffers())):
        raise user_error(
            f"{type(model).__name__} has lazy modules without parameters, and a first run would make them.",
            fix="call model(batch) once before.",
        )
    args, kwargs = call = prepare(model, batch)
    with untouched(model):
        try:
            found = trace(model, lambda: model(*args, **kwargs), inputs=call, observe=observe)
        except NormkitError:
            raise
        except Exception as error:
            raise could_not_run(model, call, error) from error
    return Inspection(model, found)


def described(spec: NormSpec) -> str:
    """A norm in a few words: "RMSNorm, eps 1e-06, 1 + w"."""
    kind = spec.kind
    names = {
        "layer": "LayerNorm",
        "rms": "RMSNorm",
        "batch": "BatchNorm",
        "group": f"GroupNorm({spec.groups})",
    }
    words = [names.get(kind, kind)]
    if kind in ("layer", "rms") and spec.axes != (-1,):
        words[0] += f" over {', '.join(map(str, spec.axes))}"
    words.append(f"eps {spec.eps:g}" + ("" if spec.eps_in_root else " outside of the root"))
    gain = " + ".join(filter(None, (spec.gain, "bias" if spec.bias else "")))
    words += [gain] if gain else []
    words += [f"gate {spec.gate} it"] if spec.gate else []
    return ", ".join(words)


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _unused(model: nn.Module, run: Trace) -> list[Unused]:
    called = {call.path for call in run.calls}
    called |= {name.rpartition(".")[0] for node in run.nodes for name in node.weights}  # without its module
    specs = SpecCache()
    found = []
    for path, module in model.named_modules():
        if path in called or not path or not _looks_like_a_norm(module, specs):
            continue
        owner = path.rpartition(".")[0]
        while owner and isinstance(model.get_submodule(owner), (nn.ModuleList, nn.ModuleDict)):
            owner = owner.rpartition(".")[0]  # containers are not called
        found.append(Unused(path, type(module).__name__, module, owner in called))
    return found


def _looks_like_a_norm(module: nn.Module, specs: SpecCache) -> bool:
    vectors = [p for p in module.parameters() if p.ndim == 1]
    if not vectors or any(True for _ in module.children()):
        return False
    n = vectors[0].shape[0]
    shapes = ((2, 3, n), (3, n), (2, n, 3, 3), (2, n, 3))
    return any(isinstance(specs.find(module, torch.empty(s, device="meta")), NormSpec) for s in shapes)
