"""One norm, or one gain, in several places of a pass.

What it finds: a module that is called for different readers (other matrices read its output), or two norms
that hold the same parameter. A layer that is repeated as a whole, as in ALBERT, is no finding.

Why it matters: places have statistics and roles of their own; a gain that two places pull at fits neither.
With BatchNorm, the running statistics are a mixture of both. Mostly it is a slip: self.norm1 written twice.

Example:
    x = x + self.attention(self.norm1(x))
    x = x + self.mlp(self.norm1(x))                # meant: self.norm2

Fix: a norm of its own for each place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.inspect.graph import Graph
from normkit.inspect.sites import Site

_PLACES = ("pre", "post", "out", "qk", "v", "inner", "after-conv", "after-linear", "stem")


def check(case: Case) -> Iterator[Found]:
    graph = case.inspection.graph
    called: dict[int, list[tuple[Site, int]]] = defaultdict(list)
    for site in case.sites:
        if not site.is_function and any(True for _ in site.module.parameters()):
            called[id(site.module)] += [(site, n) for n in site.nodes]
    for calls in called.values():
        places: dict[tuple[frozenset[str], frozenset[str]], Site] = {}
        by_caller: dict[int, list[tuple[Site, int]]] = defaultdict(list)
        for site, n in calls:
            by_caller[graph.nodes[n].call].append((site, n))
        together = max(by_caller.values(), key=len)  # in one call of the module that calls it
        ends = any(not any(graph.ancestors[r.node] >> n & 1 for r in graph.residuals) for _, n in calls)
        looks = any(site.place not in _PLACES for site, _ in calls) or (bool(graph.residuals) and ends)
        if looks and not _is_written_twice(graph, together):
            continue  # a norm for predictions may look at every layer
        for site, n in [*together, *_elsewhere(graph, calls, together)]:
            matrices = [graph.nodes[i] for i in _reads(graph, n) if graph.is_weighted(graph.nodes[i])]
            reads = frozenset(w for node in matrices for w in node.weights)
            writes = frozenset(
                w for i in _writes(graph, graph.nodes[n].inputs[0]) for w in graph.nodes[i].weights
            )
            if reads and writes and not any(reads & r or writes == w for r, w in places):
                places[reads, writes] = site
        if len(places) > 1:
            names = ", ".join(min(reads) for reads, _ in places)
            yield at(
                calls[0][0],
                float(len(places)),
                "one place for each norm",
                f"it is called for {len(places)} different readers ({names}) with the same gain.",
                "give each place a norm of its own.",
            )
    yield from _tied(case)


def _elsewhere(
    graph: Graph, calls: list[tuple[Site, int]], together: list[tuple[Site, int]]
) -> list[tuple[Site, int]]:
    """One call of each other module that calls it: a layer that is repeated as a whole is the same one."""
    seen = {graph.nodes[n].module for _, n in together}
    found = []
    for site, n in calls:
        caller = graph.nodes[n].module
        if not any(f"{caller}.".startswith(f"{s}.") or f"{s}.".startswith(f"{caller}.") for s in seen):
            seen.add(caller)
            found.append((site, n))
    return found


def _is_written_twice(graph: Graph, calls: list[tuple[Site, int]]) -> bool:
    """On two lines, each for a sum that the same code has made, or for what it was given."""
    caller = graph.nodes[calls[0][1]].call
    began = graph.trace.calls[caller].start if caller >= 0 else 0
    sources = [graph.nodes[graph.root(graph.nodes[n].inputs[0])] for _, n in calls]
    own = all(node.call == caller or node.index < began for node in sources)
    return own and len({site.line for site, _ in calls}) > 1 and any(node.kind == "add" for node in sources)


def _reads(graph: Graph, index: int) -> list[int]:
    """Who reads it, behind an activation or a pooling too."""
    found = []
    for i in graph.reads(index):
        alone = sum(graph.nodes[k].live for k in graph.nodes[i].inputs) == 1
        found += _reads(graph, i) if graph.nodes[i].kind in ("activation", "pool") and alone else [i]
    return found


def _writes(graph: Graph, index: int) -> list[int]:
    """What it is the sum of, before an activation or a pooling too."""
    found = []
    for i in graph.writes(index):
        live = [k for k in graph.nodes[i].inputs if graph.nodes[k].live]
        is_simple = graph.nodes[i].kind in ("activation", "pool") and len(live) == 1
        found += _writes(graph, live[0]) if is_simple else [i]
    return found


def _tied(case: Case) -> Iterator[Found]:
    """Two norms with one parameter, in modules that share nothing else."""
    owners: dict[int, dict[str, Site]] = defaultdict(dict)
    for site in case.sites:
        for parameter in site.module.parameters() if not site.is_function else ():
            owners[id(parameter)].setdefault(site.path, site)
    said: set[tuple[str, ...]] = set()
    for sites in owners.values():
        paths = tuple(sites)
        if len(paths) < 2 or paths in said or len({id(s.module) for s in sites.values()}) < 2:
            continue
        said.add(paths)
        holders = [path.rpartition(".")[0] for path in paths[:2]]
        first, second = (
            {id(p) for p in case.model.get_submodule(path).parameters() if p.ndim > 1} for path in holders
        )
        one_in_the_other = any(f"{a}.".startswith(f"{b}." if b else "") for a, b in (holders, holders[::-1]))
        if one_in_the_other or not first & second:
            yield at(
                sites[paths[1]],
                float(len(paths)),
                "parameters of its own",
                f"it holds the same parameter as {paths[0]}.",
                "give each norm parameters of its own.",
            )
