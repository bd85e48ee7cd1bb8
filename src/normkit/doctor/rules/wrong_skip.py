"""The skip is taken after the norm, in a layer that is otherwise Pre-LN.

What it finds: a layer that ends in a plain sum, as Pre-LN layers do, but in which the sum takes up the
output of the norm instead of what the norm read.

Why it matters: nothing gets past that norm any more. The stream is normalised in every layer, gradients
through the skip shrink with depth, and the model trains like a Post-LN one without its warm-up. It runs,
and learns worse.

Example:
    x = self.norm(x)
    x = x + self.attention(x)            # wrong: the skip is the norm's output

Fix:
    x = x + self.attention(self.norm(x))

References: SHI-Labs/Compact-Transformers#25, Howuhh/faster-trajectory-transformer#3; Xiong et al. 2020,
arXiv:2002.04745; He et al. 2016, arXiv:1603.05027.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.inspect.graph import Residual, block_of
from normkit.inspect.sites import Site

PRE = re.compile("[NP]P*A")  # how a Pre-LN layer begins; parallel sublayers may have a norm each


def check(case: Case) -> Iterator[Found]:
    graph = case.inspection.graph
    by_node = {n: site for site in case.sites for n in site.nodes}
    layers: dict[str, list[Residual]] = {}
    for r in case.residuals:
        module = graph.nodes[r.node].module
        layers.setdefault(block_of(module) or module, []).append(r)
    shapes = {layer: _shape(case, layer, sums) for layer, sums in layers.items()}
    if "" in layers and not _is_layer(case, shapes[""], layers[""]):
        del layers[""], shapes[""]
    by_design = any(shape == "AN" * (len(shape) // 2) + "A" and len(shape) > 1 for shape in shapes.values())
    if by_design:  # HybridNorm: the norm after attention serves the skip of the feed-forward, too
        return
    for layer, sums in layers.items():
        shape = shapes[layer]
        if not (shape.endswith("A") and PRE.match(shape)):
            continue
        for r in sums:
            site = by_node.get(r.skip)
            if site is None or not _inside(site.path, layer) or not _reads_stream(case, site, layer):
                continue
            if r.shortcut is not None or _is_scaled(case, r) or not _is_read_directly(case, r):
                continue
            measures = case.measures(site)
            stream = measures.rms if measures is not None else 1.0
            yield at(
                site,
                stream,
                "a skip that starts where the norm reads, not where it writes",
                f"the {r.kind.replace('_', '-')} sublayer adds to the output of its norm; the stream that "
                f"the norm read (rms {stream:.3g}) goes no further.",
                "keep what the norm reads: x = x + sublayer(norm(x)).",
            )


def _is_layer(case: Case, shape: str, sums: list[Residual]) -> bool:
    """Is the model itself one layer? Else, in code without layers, a norm on the stream may belong to either
    side: the first one is one behind the embedding, perhaps."""
    if len(sums) < 2 or not re.fullmatch("([NP]A)+", shape):
        return False
    graph = case.inspection.graph
    is_alone = sums[-1].node in graph.trace.outputs and graph.nodes[sums[0].skip].norm is not None
    if is_alone and shape.count("N") == 1 and shape.startswith("N"):
        source = graph.root(graph.nodes[sums[0].skip].inputs[0])
        return graph.nodes[source].kind == "input"
    return shape != "NA" + "PA" * (len(shape) // 2 - 1)


def _reads_stream(case: Case, site: Site, layer: str) -> bool:
    """What it reads is a sum, or came into the layer from outside: no matrix of the layer made it."""
    graph = case.inspection.graph
    source = graph.root(graph.nodes[site.nodes[0]].inputs[0])
    sums = {r.node for r in graph.residuals} | {part for r in graph.residuals for part in r.parts}
    is_outside = not layer or not (graph.nodes[source].module + ".").startswith(layer + ".")
    return source in sums or is_outside


def _is_read_directly(case: Case, r: Residual) -> bool:
    """Does a matrix of the sublayer read the skip? If not, it has a norm of its own."""
    graph = case.inspection.graph
    waiting, seen = list(graph.readers[r.skip]), {r.skip}
    while waiting:
        at = waiting.pop()
        if at in seen or not graph.ancestors[r.node] >> at & 1 or graph.nodes[at].norm is not None:
            continue
        if graph.is_weighted(graph.nodes[at]):
            return True
        seen.add(at)
        waiting += graph.readers[at]
    return False


def _is_scaled(case: Case, r: Residual) -> bool:
    """The skip is multiplied by something: as in DeepNorm, it was thought about."""
    graph = case.inspection.graph
    for index in graph.terms(r.node)[0]:
        if graph.root(index) != r.skip:
            continue
        while index != r.skip and graph.nodes[index].inputs:
            if graph.nodes[index].kind == "mul":
                return True
            live = [i for i in graph.nodes[index].inputs if graph.nodes[i].live]
            index = live[0] if live else r.skip
    return False


def _inside(path: str, layer: str) -> bool:
    if not layer:
        return "." not in path
    return path.startswith(layer + ".") or path.startswith(layer + ":")


def _shape(case: Case, layer: str, sums: list[Residual]) -> str:
    """A layer as a word: P a norm at the head of a sublayer, N one on the stream itself, A a sum."""
    graph = case.inspection.graph
    events = [(r.node, "A") for r in sums]
    for site in case.sites:
        if not _inside(site.path, layer):
            continue
        n = site.nodes[0]
        if site.place == "pre":
            events.append((n, "P"))
        elif any(r.skip == n for r in graph.residuals) or site.place in ("post", "final"):
            events.append((n, "N"))
    return "".join(kind for _, kind in sorted(events))
