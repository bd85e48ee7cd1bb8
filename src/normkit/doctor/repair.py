"""Safe fixes that several rules share."""

from __future__ import annotations

from normkit.doctor.case import Case
from normkit.inspect.edit import Edit
from normkit.inspect.equal import MismatchError
from normkit.inspect.sites import Site
from normkit.inspect.swapping import float32_statistics

__all__ = ["in_float32"]


def in_float32(case: Case, site: Site) -> Edit | None:
    """The layer of ours that computes the same with statistics in float32; None where there is none."""
    if site.is_function:
        return None
    try:
        return float32_statistics(site.path, site.module, site.spec)
    except MismatchError:
        return None
