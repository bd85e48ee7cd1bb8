"""Several series in one table: how many rows share their time, and which columns tell them apart."""

from __future__ import annotations

from typing import Any

import numpy

from normkit.lab.extras import needs
from normkit.lab.tasks.series_data.numerals import is_text
from normkit.lab.tasks.series_data.time_names import NOT_SERIES

__all__ = ["FEW_REPEATED", "distinct", "repeated", "told_apart_by"]

FEW_REPEATED = 0.05


def told_apart_by(frame: Any, when: Any, series: Any, names: list[str]) -> list[str] | None:
    """The one column, or the two, by which nearly all rows of the same time differ.

    Where most times are there once, only one of text: numbers tell a few rows apart by chance.
    """
    share = repeated(frame, when, series)
    few = FEW_REPEATED if share >= 0.5 else FEW_REPEATED * share
    if share < 0.5:
        names = [name for name in names if is_text(frame[name])]
    able = [name for name in names if name.lower() not in NOT_SERIES and _names_series(frame[name])]
    able = sorted(able, key=lambda name: (not is_text(frame[name]), frame[name].nunique()))[:12]
    pairs = [[a, b] for k, a in enumerate(able) for b in able[k + 1 :]]
    for some in (*([name] for name in able), *(pairs if share >= 0.5 else ())):
        if repeated(frame, when, series, some) <= few:
            return some
    return None


def repeated(frame: Any, when: Any, series: Any, names: list[str] | None = None) -> float:
    """The share of rows that have the time, and what else is named, of another row."""
    keys = needs("pandas").DataFrame({"when": when.to_numpy(), "series": numpy.asarray(series)})
    for k, name in enumerate(names or []):
        keys[k] = frame[name].to_numpy()
    return float(keys[when.notna().to_numpy()].duplicated(keep=False).mean())


def distinct(when: Any, series: Any) -> int:
    return len(needs("pandas").DataFrame({"when": when, "series": series}).drop_duplicates())


def _names_series(column: Any) -> bool:
    try:
        return column.dtype.kind not in "fb" and 2 <= column.nunique() <= len(column) / 10
    except TypeError:  # lists
        return False
