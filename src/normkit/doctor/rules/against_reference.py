"""What the rules that compare with a reference share: the norms of both models, in pairs."""

from __future__ import annotations

from collections.abc import Iterator

from normkit.doctor.case import Case
from normkit.inspect.sites import Site

__all__ = ["difference", "pairs"]


def pairs(case: Case) -> Iterator[tuple[Site, Site]]:
    """By their paths where all are the same; else by the order of their calls, where there are as many; else
    by the paths that both have."""
    if case.reference is None:
        return
    mine, theirs = _by_path(case.sites), _by_path(case.reference.sites)
    if mine.keys() != theirs.keys() and len(case.sites) == len(case.reference.sites):
        yield from zip(case.sites, case.reference.sites, strict=True)
        return
    for path, sites in mine.items():
        yield from zip(sites, theirs.get(path, ()), strict=False)


def _by_path(sites: list[Site]) -> dict[str, list[Site]]:
    found: dict[str, list[Site]] = {}
    for site in sites:
        found.setdefault(site.path, []).append(site)
    return found


def difference(case: Case, mine: Site, theirs: Site) -> float:
    """Of what the two norms gave on the batch, of the largest number; 1 where they cannot be compared."""
    assert case.reference is not None
    a, b = case.seen.outputs.get(mine.nodes[0]), case.reference.seen.outputs.get(theirs.nodes[0])
    if a is None or b is None or a.shape != b.shape:
        return 1.0
    off = (a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30)
    return float(off.nan_to_num(1.0, 1.0, 1.0))
