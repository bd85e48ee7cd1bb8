"""Numbers that mean times: epochs, integers such as 20200131, years, and what goes up in every series."""

from __future__ import annotations

import re
from typing import Any

import numpy

from normkit.lab.extras import needs
from normkit.lab.tasks.series_data import dates
from normkit.lab.tasks.series_data.interleaved import repeated, told_apart_by
from normkit.lab.tasks.series_data.numerals import is_text
from normkit.lab.tasks.series_data.time_names import TIMES

__all__ = ["counts_up", "is_whole_date", "is_years", "numeric_times", "read_whole_dates"]

UNITS = (1, 1_000, 1_000_000, 1_000_000_000)  # of which epochs are, to a second
EPOCHS = (3e8, 4.2e9)  # seconds, 1979 to 2103


def counts_up(column: Any, series: Any) -> bool:
    """Row numbers, years: integers, each one more than the one before in its series."""
    if column.dtype.kind not in "iu" or len(column) < 3:
        return False
    steps = column.groupby(numpy.asarray(series)).diff().dropna()
    return len(steps) > len(column) / 2 and bool((steps == 1).all())


def numeric_times(frame: Any, names: list[str], series: Any, whole: list[str]) -> tuple[Any, str] | None:
    """The numbers that say when, and their column. ``whole``: columns of integers such as 20200131."""
    for name in sorted(names, key=lambda name: name.lower() not in TIMES):
        column, named = frame[name], name.lower() in TIMES
        if column.dtype.kind == "m":
            column = column.dt.total_seconds()
        elif named and is_text(column) and dates.is_time_of_day(column):
            column = dates.seconds_of_day(column)
        if column.dtype.kind not in "iuf" or (counts_up(column, series) and not named):
            continue
        if name in whole:
            return read_whole_dates(column), name
        epochs = _epochs(column)
        if epochs is None and not named:
            continue
        in_order = _in_order(column, series)
        if epochs is not None and (_tokens(name) & {*TIMES, "ts"} or _steps_like_a_clock(epochs, in_order)):
            return epochs, name
        if named and (in_order or _evenly_spaced(column)):
            return column.astype(float), name
        if named and is_years(column) and not repeated(frame, column, series):
            return column.astype(float), name
        if named and repeated(frame, column, series) > 0.5:
            several = told_apart_by(frame, column, series, [n for n in names if n != name])
            # It is refused for its several series: that says more than that it is in no order.
            if several and _in_order(column, frame.groupby(several, sort=False).ngroup()):
                return column.astype(float), name
    return None


def _steps_like_a_clock(epochs: Any, in_order: bool) -> bool:
    """Large numbers that are called otherwise: full minutes, or always as much later."""
    steps = epochs.diff().dropna()
    return bool((epochs % 60 == 0).all() or (in_order and (steps == steps.median()).mean() > 0.9))


def _evenly_spaced(column: Any) -> bool:
    """In no order, and yet a time: put in order, it is one step after the other."""
    steps = numpy.diff(numpy.sort(column.dropna().to_numpy(float)))
    return len(steps) > 1 and steps[0] > 0 and bool(numpy.allclose(steps, steps[0], rtol=1e-3))


def _tokens(name: str) -> set[str]:
    return set(re.split(r"[^a-z]+", name.lower()))


def _in_order(column: Any, series: Any) -> bool:
    """It goes one way in every series, and most of its steps are steps."""
    steps = column.astype(float).groupby(numpy.asarray(series)).diff().dropna()
    one_way = (steps >= 0).all() or (steps <= 0).all()
    return len(steps) > len(column) / 2 and bool(one_way) and bool((steps != 0).mean() > 0.5)


def is_years(column: Any) -> bool:
    known = column.dropna()
    return len(known) > 0 and bool(known.between(1000, 3000).all())


def _epochs(column: Any) -> Any:
    """Seconds since 1970, from whatever part of a second it counts; None if it does not."""
    low, high = float(column.min()), float(column.max())
    for unit in UNITS:
        if EPOCHS[0] * unit <= low < high <= EPOCHS[1] * unit:
            return column.astype(float) / unit
    return None


def is_whole_date(column: Any, name: str) -> bool:
    """Integers such as 20200131; 202001 only if it is called so."""
    if column.dtype.kind not in "iuf" or not column.notna().any():
        return False
    known = column.dropna()
    low, high = (1900, 2101) if column.dtype.kind in "iu" or _tokens(name) & set(TIMES) else (0, 0)
    months = bool(_tokens(name) & {*TIMES, "month", "monat", "period", "yyyymm"})
    for size in (1, 100) if months else (1,):
        if (known * size // 10_000).between(low, high - 1).all() and read_whole_dates(known).notna().all():
            return known.nunique() > 1
    return False


def read_whole_dates(column: Any) -> Any:
    number = column.astype(float)
    number = number.where(number >= 1e7, number * 100 + 1)
    read = dates.ymd(number // 10_000, number // 100 % 100, number % 100)
    return needs("pandas").Series(read, index=column.index)
