"""Dates in text: one format for a whole column, the one that reads most of it and keeps its order."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import numpy

from normkit.lab.extras import needs

__all__ = [
    "Dates",
    "back_steps",
    "is_time_of_day",
    "looks_like_dates",
    "month_number",
    "read_dates",
    "seconds_of_day",
    "ymd",
]

DATE = (
    r"\d{4}[-/.]\d{1,2}|\d{1,2}[-/. ](?:[A-Za-z]{3,}|\d{1,2})[-/. ]\d{2,4}|^\s*\d{8}\b|[A-Za-z]{3,}.*\d{4}"
    r"|^\s*\d{4}[- ]?[QWM]\d|^\s*\d{1,2}[/.-]\d{4}\s*$"
)
MOST = 0.95  # of the values of a column must be dates, for it to be one of dates
DAY = 86400.0
PIVOTS = (69, *range(10, 101, 10))  # two digits from there on are a year of 19..; the first one is POSIX's
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
OTHERWISE = {"mär": 3, "mrz": 3, "mai": 5, "okt": 10, "dez": 12}
WEEKDAY = r"(?:(?:mo|tu|we|th|fr|sa|su|di|mi|do|so)[a-z]*\.?,?\s+)?"
CLOCK = r"(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d+))?)?\s*([ap]\.?m\.?)?"
ZONE = r"\s*(?:(?P<zone>z|utc|gmt|[+-]\d{2}:?(?:\d{2})?))?"
TIME_OF_DAY = re.compile(CLOCK, re.I)
VALUE = re.compile(rf"{WEEKDAY}(?P<date>.*?)(?:(?:t|[\s,]+)(?P<time>{CLOCK}){ZONE})?", re.I)
TOKEN = re.compile(r"[^\W\d_]{3,}\.?|\d+(?=(?:st|nd|rd|th)\b)|\d+", re.I)
COMPACT = re.compile(r"(\d{4})(\d{2})(\d{2})(?:[t\s]?(\d{2})(\d{2})(\d{2})?)?z?", re.I)
QUARTER = re.compile(r"(\d{4})[-\s]?q([1-4])|q([1-4])[-/\s]?(\d{4})", re.I)
MONTH = re.compile(r"(\d{4})m(\d{1,2})", re.I)
WEEK = re.compile(r"(\d{4})-?w(\d{1,2})(?:-?([1-7]))?", re.I)
# By how many parts a date has, and which of them is the name of a month.
ORDERS = {
    (3, None): ("dmy", "mdy", "ymd"),
    (3, 0): ("mdy",),
    (3, 1): ("dmy", "ymd"),
    (2, None): ("ym", "my"),
    (2, 0): ("my", "md"),
    (2, 1): ("ym", "dm"),
}
SAID = {"dmy": "day first", "mdy": "month first", "ymd": "year first", "ym": "year first", "my": "year last"}


@dataclass(frozen=True)
class Dates:
    """``seconds`` since 1970, missing where there is no date. ``bare``: none has a time of day.
    ``unclear``: the ways in which it can be read, if its order does not say which one is right."""

    seconds: Any
    bare: bool
    unclear: str | None = None

    @property
    def share(self) -> float:
        return float(self.seconds.notna().mean())


def looks_like_dates(column: Any) -> bool:
    some = column.dropna()
    some = some.iloc[:: max(1, len(some) // 100)].astype(str)
    return len(some) > 0 and bool(some.str.contains(DATE).mean() >= MOST)


def is_time_of_day(column: Any) -> bool:
    some = column.dropna()
    some = some.iloc[:: max(1, len(some) // 100)].astype(str)
    return len(some) > 0 and all(TIME_OF_DAY.fullmatch(text.strip()) for text in some)


def seconds_of_day(column: Any) -> Any:
    return _mapped(column, lambda text: _clock(TIME_OF_DAY.fullmatch(text)))


def back_steps(seconds: Any, series: Any) -> int:
    """Steps against the direction that most of them have, each series for itself."""
    steps = needs("pandas").Series(numpy.asarray(seconds)).groupby(numpy.asarray(series)).diff()
    return min(int((steps > 0).sum()), int((steps < 0).sum()))


def read_dates(column: Any, series: Any) -> Dates:
    """The dates of a column; ``series`` says which rows are to be in order among themselves."""
    pandas = needs("pandas")
    if column.dtype.kind == "M":
        return Dates(_seconds(pandas.to_datetime(column, utc=True)), bare=False)
    text = column.astype(object).map(lambda value: str(value).strip(), na_action="ignore")
    known = text.dropna()
    if len(known) and known.str.match(r"\d{4}[-/.]\d{1,2}[-/.]\d").all():
        read = pandas.to_datetime(text, utc=True, errors="coerce", format="ISO8601")
        if read.notna().sum() == len(known):
            return Dates(_seconds(read), bare=not known.str.contains(":", regex=False).any())
    codes, unique = pandas.factorize(text)
    split = [_split(value) for value in unique]
    shapes = {one.shape for one in split if one is not None}
    tabled = {shape: _tabled(split, shape) for shape in sorted(shapes, key=repr)}
    found = [
        (numpy.append(_in_order(tabled[shape], shape, order, pivot), numpy.nan)[codes], order, pivot)
        for shape in tabled
        for order in ORDERS.get(shape[:2], ("",))
        for pivot in (PIVOTS if shape[-1] else PIVOTS[:1])
    ]
    bare = all(one is None or not one.timed for one in split)
    if not found:
        return Dates(pandas.Series(numpy.nan, index=column.index), bare=bare)
    best, unclear = _best(found, series)
    return Dates(pandas.Series(best, index=column.index), bare, unclear)


def _best(found: list[tuple[Any, str, int]], series: Any) -> tuple[Any, str | None]:
    most = max(numpy.isfinite(read).sum() for read, _, _ in found)
    found = [one for one in found if numpy.isfinite(one[0]).sum() == most]
    counted = [(back_steps(read, series), read, order, pivot) for read, order, pivot in found]
    # Another century only if it, and not the usual one, brings the whole file in order.
    usual = {order: steps for steps, _, order, pivot in counted if pivot == PIVOTS[0]}
    counted = [one for one in counted if one[3] == PIVOTS[0] or (one[0] == 0 < usual.get(one[2], 1))]
    first = min(counted, key=lambda one: one[0])
    order = _ranks(first[1])
    same = [one for one in counted if numpy.array_equal(_ranks(one[1]), order)]
    rivals = [one for one in counted if 2 * first[0] >= one[0] and not any(one is other for other in same)]
    rivals = [one for one in rivals if one[2] != first[2]]
    chosen = min(same, key=lambda one: _widest_gap(one[1]))  # 01/02, 01/03: months rather than days
    names = [SAID.get(one[2], one[2]) for one in (first, *rivals)]
    return chosen[1], " or ".join(sorted(set(names))) if rivals else None


def _ranks(read: Any) -> Any:
    return numpy.unique(read, return_inverse=True)[1]


def _widest_gap(read: Any) -> float:
    known = numpy.unique(read[numpy.isfinite(read)])
    return float(numpy.diff(known).max()) if len(known) > 1 else 0.0


@dataclass(frozen=True)
class _Split:
    """A date in its parts. ``shape``: how many, where the month's name is, what is between, short years."""

    shape: tuple[Any, ...]
    parts: tuple[str, ...]
    seconds: float
    timed: bool


def _split(text: str) -> _Split | None:
    compact = COMPACT.fullmatch(text)
    if compact:
        hour, minute, second = (int(part or 0) for part in compact.groups()[3:])
        seconds = 3600.0 * hour + 60 * minute + second
        return _Split((0, "compact", False), compact.groups()[:3], seconds, compact[4] is not None)
    value = VALUE.fullmatch(text)
    clock = None if value is None else _zoned(value)
    date = None if value is None or clock is None else _date(value["date"].strip())
    if value is None or clock is None or date is None:
        return None
    return _Split(*date, clock, value["time"] is not None)


@functools.lru_cache(maxsize=1 << 14)  # one for all the hours of a day
def _date(date: str) -> tuple[tuple[Any, ...], tuple[str, ...]] | None:
    """The shape of a date, and its parts."""
    for pattern, kind in ((QUARTER, "quarter"), (MONTH, "month"), (WEEK, "week"), (COMPACT, "compact")):
        special = pattern.fullmatch(date)
        if special:
            return (0, kind, False), _special(kind, special)
    tokens = TOKEN.findall(date)
    between = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", date, flags=re.I)
    between = TOKEN.sub("0", between)
    if len(tokens) not in (2, 3) or any(token.isdigit() and len(token) > 4 for token in tokens):
        return None
    if not re.fullmatch(r"0(?:[-/.,\s']*0)+", between):
        return None
    names = [k for k, token in enumerate(tokens) if not token.isdigit()]
    numbers = [month_number(token) if k in names else token for k, token in enumerate(tokens)]
    if len(names) > 1 or None in numbers:
        return None
    if not names and not re.fullmatch(r"0([-/.,\s']+)0(?:\1 ?0)?", between):
        return None
    short = all(len(token) <= 2 for token in tokens if token.isdigit())
    mark = "" if names else between.strip("0")[:1]
    return (len(tokens), names[0] if names else None, mark, short), tuple(str(n) for n in numbers)


def month_number(name: str) -> str | None:
    start = name[:3].lower()
    return str(MONTHS.index(start) + 1) if start in MONTHS else _text(OTHERWISE.get(start))


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _special(kind: str, found: re.Match[str]) -> tuple[str, ...]:
    if kind == "quarter":
        year, quarter = (found[1], found[2]) if found[1] else (found[4], found[3])
        return year, str(3 * int(quarter) - 2), "1"
    if kind == "month":
        return found[1], found[2], "1"
    if kind == "compact":
        return found[1], found[2], found[3]
    return found[1], found[2], found[3] or "1"


def _tabled(split: list[_Split | None], shape: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """The parts of what has this shape, how many digits they have, and the time of day."""
    numbers, digits = numpy.full((len(split), 3), -1), numpy.zeros((len(split), 3), dtype=int)
    seconds = numpy.zeros(len(split))
    for k, one in enumerate(split):
        if one is not None and one.shape == shape:
            numbers[k, : len(one.parts)] = [int(part) for part in one.parts]
            digits[k, : len(one.parts)] = [len(part) for part in one.parts]
            seconds[k] = one.seconds
    return numbers, digits, seconds


def _in_order(tabled: tuple[Any, Any, Any], shape: tuple[Any, ...], order: str, pivot: int) -> Any:
    """Seconds since 1970 of what has this shape, its parts taken in this order."""
    numbers, digits, seconds = tabled
    good = digits[:, 0] > 0
    parts = []
    for letter, default in (("y", 2000), ("m", 1), ("d", 1)):
        place = (order or "ymd").find(letter)
        part = numbers[:, place] if place >= 0 else numpy.full(len(numbers), default)
        if place >= 0 and letter == "y":
            short = digits[:, place] == 2
            part = part + numpy.where(short, numpy.where(part >= pivot, 1900, 2000), 0)
            # 01/20 may be anything
            good = good & ((digits[:, place] == 4) | (short & (shape[:2] != (2, None))))
        elif place >= 0:
            good = good & (digits[:, place] <= 2)
        parts.append(numpy.where(good, part, -1))
    return (_weeks if shape[1] == "week" else ymd)(*parts) + seconds


def ymd(year: Any, month: Any, day: Any) -> Any:
    """Seconds since 1970, not a number where there is no such day."""
    year, month, day = (numpy.asarray(part, dtype=float) for part in (year, month, day))
    good = (year >= 1000) & (year <= 2999) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    months = numpy.where(good, (year - 1970) * 12 + month - 1, 0).astype(int).astype("datetime64[M]")
    days = months.astype("datetime64[D]").astype(int) + numpy.where(good, day - 1, 0)
    last = (months + 1).astype("datetime64[D]").astype(int)
    return numpy.where(good & (days < last), days * DAY, numpy.nan)


def _weeks(year: Any, week: Any, day: Any) -> Any:
    """Of ISO: the first week is the one with the fourth of January."""
    fourth = ymd(year, numpy.ones_like(year), numpy.full_like(year, 4)) / DAY
    monday = fourth - (fourth + 3) % 7
    return numpy.where((week >= 1) & (week <= 53), (monday + 7 * (week - 1) + day - 1) * DAY, numpy.nan)


def _zoned(value: re.Match[str]) -> float | None:
    """Seconds after midnight in UTC; None if there is no such time."""
    if value["time"] is None:
        return 0.0
    seconds = _clock(TIME_OF_DAY.fullmatch(value["time"].strip()))
    zone = (value["zone"] or "").lower()
    if zone[:1] in ("+", "-") and zone:
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset = 3600 * int(digits[:2]) + 60 * int(digits[2:])
        seconds -= -offset if zone[0] == "-" else offset
    return None if seconds != seconds else seconds


def _clock(found: re.Match[str] | None) -> float:
    if found is None:
        return float("nan")
    hour, minute, second = int(found[1]), int(found[2]), float(f"{found[3] or 0}.{found[4] or 0}")
    if found[5]:
        hour = hour % 12 + (12 if found[5][0] in "pP" else 0)
    return 3600.0 * hour + 60 * minute + second if hour <= 24 and minute < 60 else float("nan")


def _mapped(column: Any, read: Any) -> Any:
    pandas = needs("pandas")
    codes, unique = pandas.factorize(column)
    values = numpy.array([read(str(value).strip()) for value in unique] + [numpy.nan])
    return pandas.Series(values[codes], index=column.index)


def _seconds(dates: Any) -> Any:
    pandas = needs("pandas")
    return (dates - pandas.Timestamp(0, tz="UTC")) / pandas.Timedelta(1, "s")
