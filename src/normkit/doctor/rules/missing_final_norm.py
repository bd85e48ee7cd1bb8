"""The stream of a Pre-LN model reaches the head without a norm.

What it finds: every sublayer reads the stream through a norm, and the last sum is read by a matrix
directly: that of a head, or those of a decoder's keys and values. Where the sum itself is the output, the
norm may stand outside: that is information. So is a vision model in stages, with norms between them.

Why it matters: a Pre-LN stream grows with every layer. Without a norm at its end the head sees numbers that
are several times as large in a deep model as in a shallow one, and its gradients with them.

Example:
    for block in self.blocks: x = block(x)
    return self.head(x)                  # wrong: x is a sum of all layers

Fix:
    return self.head(self.norm(x))

References: Radford et al. 2019 (GPT-2), which adds it; Xiong et al. 2020, arXiv:2002.04745.
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found
from normkit.inspect.graph import Graph, Residual
from normkit.inspect.operations import PASSES

LEAST = 2  # sublayers that make a stream


def check(case: Case) -> Iterator[Found]:
    graph = case.inspection.graph
    called = [n for site in case.sites for n in site.nodes]
    pre = {n for site in case.sites if site.place == "pre" for n in site.nodes}
    post = {n for site in case.sites if site.place == "post" for n in site.nodes}
    skips = {r.skip for r in graph.residuals}
    for last in case.residuals:
        if last.node in skips:
            continue
        chain = [r for r in case.residuals if r is last or graph.ancestors[last.node] >> r.node & 1]
        normed = [
            r for r in chain if any(graph.is_between(n, r.skip, r.node) for n in pre) or _forks_late(graph, r)
        ]
        others = any(graph.is_between(n, r.skip, r.node) or n == r.skip for n in post for r in chain)
        if len(chain) < LEAST or len(normed) < len(chain) or others:
            continue
        reads = _reads(graph, last.node)
        is_output = last.node in graph.trace.outputs or any(i in graph.trace.outputs for i in reads)
        matrices = [  # a head: no norm comes after it, as it does between two stages
            i
            for i in reads
            if graph.nodes[i].kind == "linear"
            and graph.nodes[i].weights
            and not any(graph.ancestors[n] >> i & 1 for n in called)
        ] or [i for i in reads if graph.nodes[i].weights and _is_memory(graph, i, last.node)]
        if any(graph.nodes[i].norm is not None for i in reads) or not (is_output or matrices):
            continue
        if is_output and not matrices and reads and not all(i in graph.trace.outputs for i in reads):
            continue
        in_stages = any(
            s.place == "transition" and graph.ancestors[last.node] >> s.nodes[0] & 1 for s in case.sites
        )
        measures = case.seen.measures.get(last.node)
        rms = measures.rms if measures is not None else float("nan")
        head = graph.nodes[matrices[0]].weights[:1] if matrices else ()
        reader = graph.nodes[matrices[0]].module if matrices else ""
        yield Found(
            where=reader or (head[0].rpartition(".")[0] if head else graph.nodes[last.node].module),
            measured=rms if measures is not None else float(len(chain)),
            expected="a norm between the last sum and what reads it",
            message=f"the sum of {len(chain)} Pre-LN sublayers "
            + (f"reaches {head[0]} unnormalised." if head else "is the output, unnormalised."),
            fix="put a norm behind the last layer: head(norm(x)).",
            line=case.line(last.node),
            severity=None if matrices and not in_stages else "info",
        )


def _forks_late(graph: Graph, r: Residual) -> bool:
    """A pre-activation block with a projection: norm and activation come before the way divides."""
    at = r.skip
    if r.shortcut is not None and graph.nodes[at].kind == "activation":
        at = graph.root(graph.nodes[at].inputs[0])
    return r.shortcut is not None and graph.nodes[at].norm is not None


def _is_memory(graph: Graph, index: int, stream: int) -> bool:
    """Is it made into keys and values, for queries that come from somewhere else: a decoder's?"""
    waiting, seen = [index], set()
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        node = graph.nodes[at]
        if node.kind == "product" or (node.kind == "attention" and len(node.roles) == 3):
            query, *others = node.roles or node.inputs
            of_it = [i == stream or bool(graph.ancestors[i] >> stream & 1) for i in (query, *others)]
            return not of_it[0] and any(of_it)
        if at == index or node.kind in PASSES:
            waiting += graph.readers[at]
    return False


def _reads(graph: Graph, index: int) -> list[int]:
    """Who reads it, or its mean over tokens."""
    found = []
    for i in graph.reads(index):
        is_mean = graph.nodes[i].kind == "pool" and i not in graph.trace.outputs
        found += _reads(graph, i) if is_mean else [i]
    return found
