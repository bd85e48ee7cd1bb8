"""What the rules that compare with a reference share: the norms of both models, in pairs."""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.inspect.sites import Site

__all__ = ["pairs"]


def pairs(case: Case) -> Iterator[tuple[Site, Site]]:
    """By the order of their calls; by their paths where there are more of one than of the other."""
    if case.reference is None:
        return
    mine, theirs = case.sites, case.reference.sites
    if len(mine) == len(theirs):
        yield from zip(mine, theirs, strict=True)
        return
    by_path = {site.path: site for site in theirs}
    for site in mine:
        if site.path in by_path:
            yield site, by_path[site.path]
