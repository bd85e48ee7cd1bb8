"""A norm reads a norm, and nothing stands between.

What it finds: two norms over the same axes in a row; nobody else reads the first. A norm behind the last
layer of a stack that ends each layer with one is information: many have it.

Why it matters: the second one undoes the gain of the first and costs a pass over memory. It is what is left
when a block was changed from one placement to another, or a norm was added that the layer already had.

Example:
    x = self.norm2(self.norm1(x))

Fix: keep one of them. nn.TransformerEncoder with norm_first=False takes norm=None.

References: Vaswani et al. 2017, arXiv:1706.03762, has no norm behind its last layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.inspect.operations import MOVES
from normkit.inspect.sites import folded


def check(case: Case) -> Iterator[Found]:
    graph = case.inspection.graph
    by_node = {n: site for site in case.sites for n in site.nodes}
    for site in case.sites:
        at_node = graph.nodes[site.nodes[0]].inputs[:1]
        while at_node and graph.nodes[at_node[0]].kind in MOVES and len(graph.readers[at_node[0]]) == 1:
            at_node = graph.nodes[at_node[0]].inputs[:1]
        first = by_node.get(at_node[0]) if at_node else None
        if first is None or any(s.is_function and s.name == "normalize" for s in (first, site)):
            continue  # to unit length, for a cosine
        same = first.spec.axes == site.spec.axes and first.spec.groups == site.spec.groups
        same = same and first.group_size == site.group_size  # a view between may be of heads
        alone = len(graph.readers[at_node[0]]) == 1 and at_node[0] not in graph.trace.outputs
        if not same or not alone or first.spec.gate or site.spec.gate:
            continue
        # the second one stands outside of the first one's layer, and in none of the same kind
        owners = [folded(s.path.rpartition(".")[0]) for s in (first, site)]
        ends_a_layer = bool(first.block) and first.block != site.block and owners[0] != owners[1]
        measures = case.measures(site)
        yield at(
            site,
            measures.rms if measures is not None else 2.0,
            "something between two norms",
            f"it reads the output of {first.path} and nothing else does: its input is normalised already"
            + (f" (rms {measures.rms:.3g})." if measures is not None else "."),
            f"remove one of the two, or check which of them the placement wants; {first.path} is the first.",
            severity="info" if ends_a_layer else None,
        )
