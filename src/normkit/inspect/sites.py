"""Where the norms of a model stand: what each reads, who reads it, its place in the residual stream."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from normkit.inspect.graph import Graph, Residual, block_of
from normkit.inspect.record import Node
from normkit.inspect.spec import NormSpec

__all__ = ["PLACES", "Site", "find_sites", "folded"]

PLACES = {
    "pre": "reads the residual stream, at the head of a sublayer",
    "out": "at the end of a sublayer, before the sum",
    "post": "reads the sum, and is the stream from there on",
    "final": "reads the last sum of a stream",
    "stem": "before the first sublayer",
    "qk": "of queries or keys",
    "v": "of values",
    "inner": "elsewhere in a sublayer",
    "shortcut": "on the stream's own way past a sublayer, behind its projection",
    "after-conv": "behind a convolution",
    "after-linear": "behind a matrix, in a model without a residual stream",
    "transition": "between two parts of the stream",
    "head": "behind the last sublayer, beyond another matrix or a pooling",
    "other": "none of these",
}


@dataclass(frozen=True)
class Site:
    """A place in a model at which a norm is called.

    path       of the module; of a function, the caller's path and its name: "layers.0.attn:normalize"
    name       of its class or function
    spec       what it computes
    place      one of ``PLACES``
    branch     the kind of the sublayer it belongs to: "attention", "feed_forward", "convolution", …
    block      the path of the layer, where layers are numbered
    calls      how often it was called here
    readers    what reads its output: names of weights, "add", "attention", the path of another norm, "output"
    writers    what its input is the sum of, in the same words
    line       where the model's code calls it
    shape      of its input; ``dtype`` too
    """

    path: str
    name: str
    spec: NormSpec
    place: str
    branch: str | None
    block: str
    calls: int
    readers: tuple[str, ...]
    writers: tuple[str, ...]
    line: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    training: bool
    module: nn.Module = field(repr=False, compare=False)
    nodes: tuple[int, ...] = field(repr=False, compare=False, default=())  # of the calls, in the trace
    is_function: bool = False

    @property
    def group_size(self) -> int:
        """How many numbers share one mean here."""
        size = 1
        for axis in self.spec.axes:
            size *= self.shape[axis]
        return size // (self.spec.groups or 1)


def find_sites(graph: Graph) -> list[Site]:
    """In the order of their first calls."""
    by_place: dict[tuple[str, str, str, str], list[Node]] = {}
    for node in graph.trace.norms:
        assert node.norm is not None
        # A function that all norms of a model go through has one line for all of them.
        place = _place(graph, node)[0] if node.norm.is_function else ""
        key = (node.norm.path, node.norm.caller, node.line, place)
        by_place.setdefault(key, []).append(node)
    sites = [_site(graph, nodes) for nodes in by_place.values()]
    # The norm behind the last sum of a Post-LN stack is read by no further sublayer; its likes are.
    post = {folded(s.path) for s in sites if s.place == "post"}
    return [
        replace(s, place="post") if s.place == "final" and s.block and folded(s.path) in post else s
        for s in sites
    ]


def folded(path: str) -> str:
    """ "layers.3.norm" -> "layers.*.norm"."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def _site(graph: Graph, nodes: Sequence[Node]) -> Site:
    node = nodes[0]
    call = node.norm
    assert call is not None
    place, residual = _place(graph, node)
    source = graph.nodes[node.inputs[0]] if node.inputs else node
    return Site(
        path=call.path,
        name=node.name,
        spec=call.spec,
        place=place,
        branch=residual.kind if residual is not None else None,
        block=block_of(_owner(call.path)),
        calls=len(nodes),
        readers=tuple(
            dict.fromkeys(w for i in graph.reads(node.index) for w in _words(graph, i, node.index))
        ),
        writers=tuple(
            dict.fromkeys(w for i in node.inputs[:1] for k in graph.writes(i) for w in _words(graph, k, None))
        ),
        line=node.line,
        shape=source.shape,
        dtype=source.dtype,
        training=call.module.training,
        module=call.module,
        nodes=tuple(n.index for n in nodes),
        is_function=call.is_function,
    )


def _owner(path: str) -> str:
    """The module that calls it: what stands before the last name."""
    before, colon, _ = path.partition(":")
    return before if colon else path.rpartition(".")[0]


def _words(graph: Graph, index: int, reader_of: int | None) -> tuple[str, ...]:
    node = graph.nodes[index]
    if node.norm is not None:
        return (node.norm.path,)
    if node.kind == "parameter":
        return node.weights or (node.name,)
    if node.weights and graph.is_weighted(node):
        return node.weights[:1]  # a bias beside it says nothing new
    if reader_of is not None and index in graph.trace.outputs:
        return ("output",)
    return (node.kind if node.kind != "other" else node.name,)


def _place(graph: Graph, node: Node) -> tuple[str, Residual | None]:
    """By what its input comes from, and where its output goes."""
    n = node.index
    if not node.inputs:
        return "other", None
    source = graph.root(node.inputs[0])
    residuals = graph.residuals
    sums = {r.node: r for r in residuals} | {part: r for r in residuals for part in r.parts}
    for r in residuals:
        if r.shortcut is not None and n in (graph.root(r.shortcut), r.shortcut):
            return "shortcut", r
        if any(graph.root(b) == n for b in r.branches) and graph.ancestors[n] >> r.skip & 1:
            return "out", r
    after = [r for r in residuals if r.skip == n and not r.inner] or [r for r in residuals if r.skip == n]
    if after:
        if source in sums:
            return "post", sums[source]
        is_behind = any(graph.ancestors[n] >> r.node & 1 for r in residuals)
        return ("transition" if is_behind else "stem"), after[0]
    for r in residuals:
        if r.skip == source and any(b == n or graph.ancestors[b] >> n & 1 for b in r.branches):
            return "pre", r
    role = _role_in_attention(graph, n)
    around = [r for r in residuals if graph.is_between(n, r.skip, r.node)]
    around = sorted(around, key=lambda r: r.node - r.skip)
    if role is not None and around:
        return role, around[0]
    if source in sums and not sums[source].inner:
        return "final", sums[source]
    kind = graph.nodes[source].kind
    if around:
        return ("after-conv" if kind == "conv" else "inner"), around[0]
    if kind == "conv":
        return "after-conv", None
    if not residuals:
        return ("after-linear" if kind == "linear" else "other"), None
    behind = [r for r in residuals if graph.ancestors[n] >> r.node & 1]
    if not behind:
        return "stem", None
    ahead = [r for r in residuals if graph.ancestors[r.node] >> n & 1]
    return ("transition" if ahead else "head"), None


def _role_in_attention(graph: Graph, n: int) -> str | None:
    """Does it end in a product of queries and keys, or in the one with values, before any other matrix?"""
    waiting, seen = list(graph.readers[n]), set()
    while waiting:
        at = waiting.pop(0)
        if at in seen:
            continue
        seen.add(at)
        node = graph.nodes[at]
        if node.kind == "attention" and not node.weights:
            role = next((k for k, i in enumerate(node.roles) if i == n or graph.ancestors[i] >> n & 1), None)
            return "v" if role == 2 else "qk"
        if node.kind == "product":
            behind_softmax = any(_comes_from_softmax(graph, i) for i in node.inputs)
            return "v" if behind_softmax else "qk"
        if node.kind in ("view", "cast", "dropout", "mul", "add", "join", "other"):
            waiting += graph.readers[at]
    return None


def _comes_from_softmax(graph: Graph, index: int) -> bool:
    return graph.nodes[graph.root(index)].kind == "softmax"
