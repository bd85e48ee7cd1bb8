"""Statistics over the wrong numbers.

What it finds: a norm without running statistics whose means are over the whole batch and all features; one
whose gain lies on an axis that is not the channel of the matrices around it; one that takes in tokens,
positions or space where the other norms of the model keep to the features.

Why it matters: samples or tokens leak into each other (a causal model sees the future), results depend on
the batch and on the length, and nothing raises: shapes fit whenever two axes have the same size.

Example:
    mean = x.mean()                              # over the batch, too
    nn.LayerNorm([length, dim])                  # over tokens, too
    nn.LayerNorm(width)(images)                  # over the last axis of (n, c, h, w)

Fix: normalise over the features alone: nn.LayerNorm(dim) with the features last, normkit.LayerNorm(c,
axis=1) for images.

References: Ba et al. 2016, arXiv:1607.06450.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.inspect.graph import Graph
from normkit.inspect.sites import Site

_STREAM = ("pre", "post", "out", "final")


def check(case: Case) -> Iterator[Found]:
    graph = case.inspection.graph
    channels = [_channel(graph, site) for site in case.sites]
    usual = Counter(_pattern(s, c) for s, c in zip(case.sites, channels, strict=True) if s.place in _STREAM)
    for site, channel in zip(case.sites, channels, strict=True):
        said = _said(site, channel, usual)
        if said is not None:
            yield at(
                site,
                float(site.group_size),
                "one mean over the features of one token, or one place, as the other norms have it",
                f"{said}; {site.group_size:,} numbers share one mean on an input of {list(site.shape)}.",
                "normalise over the features alone, and move them last or name their axis.",
            )


def _said(site: Site, channel: int | None, usual: Counter[tuple[bool, int]]) -> str | None:
    spec, rank = site.spec, len(site.shape)
    if spec.running or rank < 2 or (site.is_function and site.place not in _STREAM):
        return None
    if len(spec.axes) == rank:
        return "its mean is over the whole batch"
    includes, extra = _pattern(site, channel)
    if channel is None:
        return None
    others = sum(n for (inside, more), n in usual.items() if inside and more == 0)
    if spec.groups is not None:
        axis = spec.axes[0] + rank
        if site.place in _STREAM and channel != axis and others >= 2:
            return f"it cuts axis {axis - rank} into groups, and the features are on axis {channel - rank}"
        return None
    if rank == 4 and channel == 1 and spec.axes in ((-1,), (-2,)) and min(site.shape[-2:]) > 1:
        return f"its mean is over axis {spec.axes[0]} of images, not over the other one nor over channels"
    among_others = site.place in _STREAM and others >= 2
    if not includes and (-rank not in spec.axes or among_others):
        gains = [p.shape for p in site.module.parameters() if p.numel() > 1]
        over = tuple(site.shape[a] for a in spec.axes)
        on_channel = any(site.shape[channel] in shape for shape in gains) and over != tuple(gains[0])
        if gains and not on_channel:
            return (
                f"its gain and its mean are over axis {spec.axes[-1]}, the features on axis {channel - rank}"
            )
        if site.place in _STREAM and channel == rank - 1:
            return f"its mean is over axis {spec.axes[-1]}, and the features are on axis {channel - rank}"
    if site.place in _STREAM and includes and extra > 0 and others >= 2 and others > usual[(True, extra)]:
        return "it takes in other positions, which the other norms of the model do not"
    return None


def _pattern(site: Site, channel: int | None) -> tuple[bool, int]:
    """(are the features in the mean, how many other axes are)."""
    rank = len(site.shape)
    if channel is None:
        return (False, -1)
    axes = {a + rank for a in site.spec.axes}
    sized = {a for a in axes if site.shape[a] > 1}
    return channel in axes, len(sized - {channel})


def _channel(graph: Graph, site: Site) -> int | None:
    """The axis of its input on which the matrices around it act, if that can be followed."""
    rank = len(site.shape)
    found = {_acts_on(graph, i, rank, site.shape) for i in _neighbours(graph, site)}
    found.discard(None)
    return found.pop() if len(found) == 1 else None


_SAME_AXES = ("cast", "dropout", "activation", "add", "mul")


def _neighbours(graph: Graph, site: Site) -> list[int]:
    """Matrices that it reads or that read it, with nothing between that moves an axis."""
    n = site.nodes[0]
    found = []
    waiting, seen = list(graph.readers[n]), {n}
    while waiting:
        at_node = waiting.pop()
        if at_node in seen:
            continue
        seen.add(at_node)
        node = graph.nodes[at_node]
        if graph.is_weighted(node):
            found.append(at_node)
        elif node.kind in _SAME_AXES and node.shape == site.shape:
            waiting += graph.readers[at_node]
    waiting = list(graph.nodes[n].inputs[:1])
    while waiting:
        at_node = waiting.pop()
        if at_node in seen:
            continue
        seen.add(at_node)
        node = graph.nodes[at_node]
        if graph.is_weighted(node) and node.shape == site.shape:
            found.append(at_node)
        elif node.kind in _SAME_AXES and node.shape == site.shape:
            waiting += [i for i in node.inputs if graph.nodes[i].live]
    return found


def _acts_on(graph: Graph, index: int, rank: int, shape: tuple[int, ...]) -> int | None:
    node = graph.nodes[index]
    if node.kind in ("linear", "embedding") and node.name in ("linear", "embedding", "addmm"):
        return rank - 1
    if node.kind == "conv" and node.name[4:6] in ("1d", "2d", "3d", "_t"):
        dims = int(node.name[node.name.index("d") - 1]) if "d" in node.name else 0
        return 1 if rank == dims + 2 else None
    return None
