"""One norm, or one gain, in several places of a pass.

What it finds: a module that is called for different readers (other matrices read its output), or two norms that hold
the same parameter. A layer that is repeated as a whole, as in ALBERT, is no finding.

Why it matters: places have statistics and roles of their own; a gain that two places pull at fits neither. With
BatchNorm, the running statistics are a mixture of both. Mostly it is a slip: self.norm1 written twice.

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
from normkit.inspect.sites import Site


def check(case: Case) -> Iterator[Found]:
    graph = case.inspection.graph
    places: dict[int, dict[tuple[str, ...], Site]] = defaultdict(dict)
    for site in case.sites:
        if site.is_function or not any(True for _ in site.module.parameters()):
            continue
        for n in site.nodes:
            weights = [w for i in graph.reads(n) for w in graph.nodes[i].weights]
            if weights:
                places[id(site.module)].setdefault(tuple(sorted(weights)), site)
    for readers in places.values():
        if len(readers) > 1:
            site = next(iter(readers.values()))
            names = ", ".join(names[0] for names in readers)
            yield at(
                site,
                float(len(readers)),
                "one place for each norm",
                f"it is called for {len(readers)} different readers ({names}) with the same gain.",
                "give each place a norm of its own.",
            )
    owners: dict[int, dict[str, Site]] = defaultdict(dict)
    for site in case.sites:
        for parameter in site.module.parameters() if not site.is_function else ():
            owners[id(parameter)].setdefault(site.path, site)
    said: set[tuple[str, ...]] = set()
    for sites in owners.values():
        paths = tuple(sites)
        if len(paths) > 1 and paths not in said and len({id(s.module) for s in sites.values()}) > 1:
            said.add(paths)
            yield at(
                sites[paths[1]],
                float(len(paths)),
                "parameters of its own",
                f"it holds the same parameter as {paths[0]}.",
                "give each norm parameters of its own.",
            )
