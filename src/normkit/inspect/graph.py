"""Questions about a trace: what does a tensor come from, who reads it, where are the residual sums?"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from normkit.inspect.operations import MOVES, PASSES, WEIGHTED
from normkit.inspect.record import Node, Trace

__all__ = ["Graph", "Residual", "block_of"]


@dataclass
class Residual:
    """A sum of the residual stream and what a sublayer made of it.

    node       the sum
    skip       where the stream comes from: a node before any scale, cast or dropout
    branches   the other terms
    shortcut   the stream meets a matrix of its own on its way (a projection)
    inner      it stands inside of another one's sublayer
    kind       "attention", "convolution", "feed_forward" or "mixer": by what is on the branch
    """

    node: int
    skip: int
    branches: tuple[int, ...]
    shortcut: int | None = None
    inner: bool = False
    kind: str = "feed_forward"
    parts: tuple[int, ...] = field(default=(), repr=False)  # the sums that it is made of


class Graph:
    """A trace with its edges in both directions; sets of nodes are integers, one bit a node."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.nodes: list[Node] = trace.nodes
        self.readers: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for i in node.inputs:
                self.readers[i].append(node.index)
        self.ancestors: list[int] = []
        self.through: list[int] = []  # ancestors behind a matrix
        for node in self.nodes:
            above = through = 0
            for i in node.inputs:
                above |= self.ancestors[i] | (1 << i)
                through |= self.through[i]
            if self.is_weighted(node):
                through |= above
            self.ancestors.append(above)
            self.through.append(through)

    def is_weighted(self, node: Node) -> bool:
        return node.kind in WEIGHTED or (node.kind == "attention" and bool(node.weights))

    def root(self, index: int) -> int:
        """Back through everything that leaves numbers what they are, up to a scale and a constant."""
        while True:
            node = self.nodes[index]
            if node.kind not in PASSES:
                return index
            live = [i for i in node.inputs if self.nodes[i].live] or list(node.inputs)
            if len(live) != 1:
                return index
            index = live[0]

    def is_between(self, index: int, start: int, stop: int) -> bool:
        """Does a way from start to stop lead through it?"""
        return bool(self.ancestors[stop] >> index & 1) and bool(self.ancestors[index] >> start & 1)

    def reads(self, index: int) -> list[int]:
        """The nodes that do something with it: forward through views, casts, dropout and constants."""
        found: dict[int, None] = {}
        waiting, seen = list(self.readers[index]), {index}
        while waiting:
            at = waiting.pop(0)
            if at in seen:
                continue
            seen.add(at)
            node = self.nodes[at]
            alone = sum(self.nodes[i].live for i in node.inputs) <= 1
            if node.kind in MOVES or node.kind == "join" or (node.kind in PASSES and alone):
                waiting += self.readers[at]
                if at in self.trace.outputs:
                    found[at] = None
            else:
                found[at] = None
        return list(found)

    def writes(self, index: int) -> list[int]:
        """The nodes whose sum it is: back through views, casts, sums, scales."""
        found: dict[int, None] = {}
        waiting, seen = [index], set()
        while waiting:
            at = waiting.pop(0)
            if at in seen:
                continue
            seen.add(at)
            node = self.nodes[at]
            if node.kind in PASSES and node.inputs:
                live = [i for i in node.inputs if self.nodes[i].live]
                of_weights = [i for i in node.inputs if not self.nodes[i].live and self.nodes[i].weights]
                waiting += live + (of_weights if node.kind in ("add", "join") else [])
            else:
                found[at] = None
        return list(found)

    @cached_property
    def residuals(self) -> list[Residual]:
        """In order."""
        found: dict[int, Residual] = {}
        for node in self.nodes:
            if node.kind != "add" or len(node.shape) < 2:
                continue
            leaves, parts = self.terms(node.index)
            residual = self._residual(node.index, leaves)
            if residual is not None:
                for part in parts:
                    found.pop(part, None)
                residual.parts = tuple(parts)
                found[node.index] = residual
        all_ = list(found.values())
        for residual in all_:
            residual.kind = self._kind(residual)
        for outer in all_:
            block = block_of(self.nodes[outer.node].module)
            if not block:
                continue
            for inner in all_:
                where = self.nodes[inner.node].module
                deeper = where.startswith(self.nodes[outer.node].module + ".") and inner is not outer
                if deeper and any(
                    b == inner.node or self.ancestors[b] >> inner.node & 1 for b in outer.branches
                ):
                    inner.inner = inner.inner or self.is_between(inner.node, outer.skip, outer.node)
        return all_

    def terms(self, index: int) -> tuple[list[int], list[int]]:
        """What is added, and the sums on the way that nobody else reads."""
        leaves: list[int] = []
        parts: list[int] = []
        for i in self.nodes[index].inputs:
            at = i
            while self.nodes[at].kind in MOVES | {"mul"} and len(self.readers[at]) == 1:
                live = [k for k in self.nodes[at].inputs if self.nodes[k].live]
                if len(live) != 1:
                    break
                at = live[0]
            node = self.nodes[at]
            if node.kind == "add" and len(self.readers[at]) == 1 and at not in self.trace.outputs:
                more, inside = self.terms(at)
                leaves += more
                parts += [at, *inside]
            else:
                leaves.append(i)
        return leaves, parts

    def _residual(self, index: int, leaves: list[int]) -> Residual | None:
        shape = self.nodes[index].shape
        terms = [  # a mask of all rows is none; what experts give may have no axis for the batch
            i
            for i in leaves
            if self.nodes[i].shape[-2:] == shape[-2:]
            or (self.nodes[i].shape[-1:] == shape[-1:] and prod(self.nodes[i].shape) == prod(shape))
        ]
        best: tuple[int, int] | None = None
        for skip in terms:
            root = self.root(skip)
            count = sum(bool(self.through[b] >> root & 1) for b in terms if b != skip)
            if count and (best is None or count > best[0]):
                best = count, skip
        if best is not None:
            skip = best[1]
            rest = tuple(b for b in terms if b != skip and self.nodes[b].live)
            return Residual(index, self.root(skip), rest)
        return self._projected(index, [i for i in terms if self.nodes[i].live])

    def _projected(self, index: int, terms: list[int]) -> Residual | None:
        """Both terms come from one tensor, one of them through a single matrix: a shortcut."""
        if len(terms) != 2:
            return None
        common = self.ancestors[terms[0]] & self.ancestors[terms[1]]
        while common:
            start = common.bit_length() - 1
            if self.nodes[start].live:
                break
            common &= ~(1 << start)
        else:
            return None
        lengths = []
        for term in terms:
            way = [
                self.nodes[i]
                for i in range(start + 1, term + 1)
                if i == term or (self.ancestors[term] >> i & 1)
                if self.ancestors[i] >> start & 1
            ]
            matrices = sum(self.is_weighted(node) for node in way)
            bends = sum(node.kind in ("activation", "norm", "softmax", "attention") for node in way)
            lengths.append((matrices, bends, term))
        short, long = sorted(lengths)
        if short[0] != 1 or long[0] < 2 or not long[1] or self.nodes[start].kind == "embedding":
            return None
        return Residual(index, self.root(start), (long[2],), shortcut=short[2])

    def _kind(self, residual: Residual) -> str:
        kinds = set()
        for i in range(residual.skip + 1, residual.node):
            if (
                any(i == b or self.ancestors[b] >> i & 1 for b in residual.branches)
                and self.ancestors[i] >> residual.skip & 1
            ):
                kinds.add(self.nodes[i].kind)
        if kinds & {"attention", "softmax"} and kinds & {"attention", "product"}:
            return "attention"
        if "conv" in kinds and not kinds & {"linear"}:
            return "convolution"
        return "feed_forward" if kinds & {"activation", "linear"} else "mixer"


def block_of(path: str) -> str:
    """ "encoder.layer.3.attention" -> "encoder.layer.3": the last member of a numbered list on the path."""
    found = re.match(r"^(.*\.)?\d+(?=\.|$)", path)
    return found.group(0) if found else ""
