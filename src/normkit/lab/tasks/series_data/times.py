"""Which columns of a table say when a row was: dates in text, then numbers that mean times, then counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy

from normkit.errors import user_error
from normkit.lab.extras import needs
from normkit.lab.tasks.series_data import dates
from normkit.lab.tasks.series_data.interleaved import distinct, repeated
from normkit.lab.tasks.series_data.numerals import has_commas, is_text
from normkit.lab.tasks.series_data.numeric_times import counts_up, is_whole_date, is_years, numeric_times
from normkit.lab.tasks.series_data.time_names import CLOCK, DATES, PARTS, QUARTER, TIMES, YEARS

__all__ = ["Times", "find_times"]


@dataclass(frozen=True)
class Times:
    """``when`` each row was, a number; None if the order of the rows alone says so. ``columns`` are those
    that say it; ``dated`` those that are no inputs either, because they are dates."""

    when: Any
    columns: tuple[str, ...] = ()
    dated: tuple[str, ...] = ()


def find_times(frame: Any, names: list[str], series: Any, where: str) -> Times:
    """``series``: a number for each row, of the series that it belongs to."""
    whole = [name for name in names if is_whole_date(frame[name], name)]
    found = _text_dates(frame, names, series, where)
    if found is None:
        found = _parts_joined(frame, names)
    if found is None:
        number = numeric_times(frame, names, series, whole)
        if number is not None:
            when, name = number
            own = when, (name,)
            found = Times(*(_with_clock(frame, names, when, name, series) if name in whole else own))
    if found is None:
        _refuse_unread(frame, names, series, where)
        # What counts on from one series to the next says nothing of when.
        several = series.nunique() > 1
        counters = [n for n in names if counts_up(frame[n], series) and not (several and frame[n].is_unique)]
        found = Times(frame[counters[0]].astype(float), (counters[0],)) if counters else Times(None)
    years = [name for name in names if name.lower() in YEARS and frame[name].dtype.kind in "iu"]
    dated = [name for name in (*whole, *(years if found.when is None else ())) if name not in found.columns]
    return Times(found.when, found.columns, tuple(dict.fromkeys(dated)))


def _text_dates(frame: Any, names: list[str], series: Any, where: str) -> Times | None:
    found = []
    for name in sorted(names, key=lambda name: name.lower() not in TIMES):  # those that are called so first
        column = frame[name]
        if column.dtype.kind == "M" or (is_text(column) and not has_commas(column) and _some_dates(column)):
            read = dates.read_dates(column, series)
            known = column.notna().sum()
            good = known > len(column) / 2 and read.seconds.notna().sum() >= dates.MOST * known
            if good and read.seconds.nunique() > 1:
                found.append((read.unclear is not None, name, read))
    if not found:
        return None
    unclear, name, read = min(
        found, key=lambda one: (one[0], len(found) > 1 and repeated(frame, one[2].seconds, series) > 0.5)
    )
    if unclear:
        raise user_error(
            f"{where}: the dates of {name}, as {str(frame[name].dropna().iloc[0])!r}, may be {read.unclear}.",
            expected="dates that can be read in one way, or rows that are in their order",
            fix="write them as 2020-01-31.",
        )
    if not read.bare and (read.seconds % dates.DAY).any():
        return Times(read.seconds, (name,))
    return Times(*_with_clock(frame, names, read.seconds, name, series))


def _some_dates(column: Any) -> bool:
    some = column.dropna()
    some = some.iloc[:: max(1, len(some) // 100)]
    read = dates.read_dates(some, numpy.zeros(len(some)))
    return bool(read.seconds.notna().mean() > 0.5)


def _with_clock(
    frame: Any, names: list[str], when: Any, name: str, series: Any
) -> tuple[Any, tuple[str, ...]]:
    """Dates and the times of day beside them, if a date is there more than once."""
    before = distinct(when, series)
    for clock, columns in (*_times_of_day(frame, names), *_clock_parts(frame, names)):
        joined = when + clock
        if joined.notna().mean() >= dates.MOST and distinct(joined, series) > before:
            return joined, (name, *columns)
    return when, (name,)


def _times_of_day(frame: Any, names: list[str]) -> Any:
    for name in names:
        column = frame[name]
        if is_text(column) and dates.is_time_of_day(column):
            yield dates.seconds_of_day(column), (name,)
        elif name.lower() in ("time", "zeit", "hhmm", "uhrzeit") and column.dtype.kind in "iu":
            if column.max() > 24 and ((column % 100 < 60) & column.between(0, 2400)).all():
                yield column // 100 * 3600.0 + column % 100 * 60, (name,)
            elif column.between(0, 24).all():
                yield column * 3600.0, (name,)


def _clock_parts(frame: Any, names: list[str]) -> Any:
    clock, columns = _summed_clock(frame, names)
    if columns:
        yield clock, columns


def _summed_clock(frame: Any, names: list[str]) -> tuple[Any, tuple[str, ...]]:
    """Hours, minutes and seconds that have columns of their own."""
    clock: Any = 0.0
    columns: list[str] = []
    for size, called in CLOCK.values():
        name = _called(frame, names, called)
        if name is None:
            break
        clock, columns = clock + frame[name].astype(float) * size, [*columns, name]
    return clock, tuple(columns)


def _called(frame: Any, names: list[str], called: tuple[str, ...]) -> str | None:
    return next((n for n in names if n.lower() in called and frame[n].dtype.kind in "iuf"), None)


def _parts_joined(frame: Any, names: list[str]) -> Times | None:
    """Year, month, day and what there is of a clock, in a column each."""
    year = _called(frame, names, YEARS)
    month, day, day_of_year = (_called(frame, names, called) for called in PARTS.values())
    months = None if month is None else frame[month].astype(float)
    for name in names if month is None else ():
        if name.lower() in PARTS["month"] and is_text(frame[name]):
            month, months = name, _months(frame[name])
    quarter = _called(frame, names, QUARTER)
    if month is None and quarter is not None and frame[quarter].dropna().between(1, 4).all():
        month, months = quarter, 3 * frame[quarter].astype(float) - 2
    if year is None or (month is None and day_of_year is None):
        return None
    years = frame[year].astype(float)
    years = years + numpy.where(years < 100, numpy.where(years >= dates.PIVOTS[0], 1900, 2000), 0)
    ones = numpy.ones(len(frame))
    if month is not None:
        days = ones if day is None else frame[day].astype(float)
        when, columns = dates.ymd(years, months, days), [year, month, *filter(None, [day])]
    else:
        assert day_of_year is not None
        when = dates.ymd(years, ones, ones) + (frame[day_of_year].astype(float) - 1) * dates.DAY
        columns = [year, day_of_year]
    when = needs("pandas").Series(numpy.asarray(when), index=frame.index)
    if day is not None or month is None:
        clock, more = _summed_clock(frame, names)
        when, columns = when + clock, [*columns, *more]
    return Times(when, tuple(columns)) if when.notna().mean() >= dates.MOST and when.nunique() > 1 else None


def _months(column: Any) -> Any:
    """From their names."""
    known = {value: dates.month_number(str(value).strip()) for value in column.dropna().unique()}
    return column.map({value: float(number) for value, number in known.items() if number}).astype(float)


def _refuse_unread(frame: Any, names: list[str], series: Any, where: str) -> None:
    """The order of the file is not what counts while a column says when, and cannot be understood."""
    for name in names:
        column = frame[name]
        if column.dropna().astype(str).nunique() < 2:
            continue
        named = name.lower() in DATES
        if is_text(column):
            if dates.is_time_of_day(column):
                steps = dates.seconds_of_day(column).groupby(numpy.asarray(series)).diff()
                bad = bool((steps < 0).sum() > (steps > 0).sum())
            else:
                bad = (named or dates.looks_like_dates(column)) and not _is_numbers(column)
        elif name.lower() in YEARS and is_years(column):
            bad = bool((column.groupby(numpy.asarray(series)).diff() < 0).any())
        else:
            bad = named and column.dtype.kind in "iuf" and not counts_up(column, series)
        if bad:
            example = str(column.dropna().iloc[0])
            raise user_error(
                f"{where}: {name} seems to say when, as {example!r}, and cannot be read.",
                expected="dates such as 2020-01-31 10:00, seconds since 1970, or numbers that go up",
                fix="write it as 2020-01-31 10:00; or take it out, if the rows are in time order.",
            )


def _is_numbers(column: Any) -> bool:
    return bool(needs("pandas").to_numeric(column, errors="coerce").notna().mean() > 0.5)
