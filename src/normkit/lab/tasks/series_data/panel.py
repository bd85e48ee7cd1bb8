"""Series in time order, as a task needs them: numbers, which series a row belongs to, and its label.

Whatever a table has besides is left out, and named.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normkit import checks
from normkit.errors import user_error
from normkit.lab.extras import needs
from normkit.lab.tasks.series_data.dates import looks_like_dates
from normkit.lab.tasks.series_data.interleaved import FEW_REPEATED, repeated, told_apart_by
from normkit.lab.tasks.series_data.numerals import is_text, read_numbers
from normkit.lab.tasks.series_data.numeric_times import counts_up
from normkit.lab.tasks.series_data.tables import read_frame
from normkit.lab.tasks.series_data.times import Times, find_times
from normkit.lab.tasks.windows import cut_at_gaps

__all__ = ["Panel", "read_panel"]

MAX_CLASSES = 100
FEW = 6  # names that are listed
UNNAMED = ("index", "level_0", "Unnamed: 0")  # what pandas calls an index that had no name


@dataclass(frozen=True)
class Panel:
    """``values`` (rows, columns), one series after the other, each in time order. ``series`` numbers the
    series; ``time`` says when, in any unit that is common to all of them; ``labels`` are numbers of
    ``classes``, -1 if there is none."""

    source: str
    columns: tuple[str, ...]
    values: Tensor
    series: Tensor
    time: Tensor
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()

    @functools.cached_property
    def stretches(self) -> Tensor:
        """Numbers the series, anew after each gap in time: no window crosses one."""
        return cut_at_gaps(self.series, self.time)

    @functools.cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr((self.columns, self.classes)).encode())
        for tensor in (self.values, self.series, self.time, self.labels):
            if tensor is not None:
                digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()


def read_panel(where: str, columns: str | None, label: str | None, group: str | None) -> Panel:
    """That of a file. It is read again if it has changed."""
    try:
        seen = Path(where).expanduser().stat()
        stamp = seen.st_size, seen.st_mtime_ns
    except OSError:
        stamp = -1, 0
    return _read(where, stamp, columns, label, group)


@functools.lru_cache(maxsize=8)
def _read(where: str, _: tuple[int, int], columns: str | None, label: str | None, group: str | None) -> Panel:
    short = min(os.path.relpath(where), where, key=len)
    text = [name for name in (label, group, *(group or "").split("+")) if name]
    frame, notes = read_frame(where, text), _Notes(f"--data {short}")
    names = list(frame.columns)
    if label is not None:
        checks.one_of(label, names, what=f"{notes.where}, label=")
    keys = _keys(group, names, notes.where)
    if label is not None and label in keys:
        raise user_error(f"label= and group= both got {label!r}.", expected="two columns")
    others = [name for name in names if name != label and name not in keys]
    wanted = others if columns is None else _select(columns, others, notes.where)
    series = _numbered(frame, keys)
    chosen = () if columns is None else (columns, *columns.split("+"))  # not those of a pattern
    free = [n for n in others if n not in chosen or is_text(frame[n]) or frame[n].dtype.kind == "M"]
    times = find_times(frame, free, series, notes.where)
    _one_series(frame, times, series, [n for n in others if n not in times.columns], keys, notes)
    counting = [n for n in wanted if n not in (*chosen, *times.columns) and _is_counter(frame[n])]
    wanted = [n for n in wanted if n not in (*times.columns, *times.dated, *counting)]
    frame, series, when = _in_order(frame, group, series, times, notes)
    for why, which in (("when it was", times.columns), ("dates", times.dated), ("row numbers", counting)):
        for name in which:
            notes.skip(why, name)
    numbers = torch.from_numpy(series.to_numpy().copy())
    time = _positions(numbers) if when is None else torch.from_numpy(when.to_numpy(float).copy())
    found = _numbers(frame, wanted, (time <= time.median()).numpy(), notes)
    values, kept = _filled(found, series, notes)
    labels, classes = (None, ()) if label is None else _classes(frame[label][kept], label, notes)
    kept = torch.from_numpy(kept.to_numpy().copy())
    left, numbers = numbers[kept].unique(return_inverse=True)
    gaps = int(cut_at_gaps(numbers, time[kept])[-1]) + 1 - len(left)
    if gaps:
        notes.done.append(f"{gaps} gap{'s' * (gaps > 1)} in time, which no window crosses")
    about = notes.words(short, values, found.columns, len(left), group)
    return Panel(about, tuple(found.columns), torch.from_numpy(values), numbers, time[kept], labels, classes)


class _Notes:
    """What was left out, and what was done, to be said in a few words."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.skipped: dict[str, list[str]] = {}
        self.done: list[str] = []

    def skip(self, why: str, name: str) -> None:
        self.skipped.setdefault(why, []).append(name)

    def words(self, name: str, values: Any, columns: Any, series: int, group: str | None) -> str:
        many = f", {series} series by {group}" if group is not None else ""
        text = f"{name}: {len(values):,} rows of {_few(list(columns))}{many}"
        skipped = [f"{_few(names)} ({why})" for why, names in self.skipped.items()]
        return "; ".join([text, *([f"skipped: {', '.join(skipped)}"] if skipped else []), *self.done])


def _few(names: list[str]) -> str:
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW} more" if len(names) > FEW else "")


def _select(columns: str, names: list[str], where: str) -> list[str]:
    """``a+b``, or a pattern like ``temp*``; a name that has such a letter in it is itself."""
    found: list[str] = []
    for part in [columns] if columns in names else columns.split("+"):
        matches = [part] if part in names else [name for name in names if fnmatch.fnmatchcase(name, part)]
        if not matches:
            checks.one_of(part, names, what=f"{where}, columns=")
        found += [name for name in matches if name not in found]
    return found


def _keys(group: str | None, names: list[str], where: str) -> list[str]:
    """The columns that tell series apart: ``a+b``; a name that has such a letter in it is itself."""
    if group is None:
        return []
    keys = [group] if group in names else group.split("+")
    for name in keys:
        checks.one_of(name, names, what=f"{where}, group=")
    return keys


def _numbered(frame: Any, keys: list[str]) -> Any:
    """The number of the series of each row, in the order in which they come; -1 where a key is missing."""
    pandas = needs("pandas")
    if not keys:
        return pandas.Series(0, index=frame.index)
    known = frame[keys].notna().all(axis=1)
    several = frame[keys[0]] if len(keys) == 1 else pandas.MultiIndex.from_frame(frame[keys])
    return pandas.Series(pandas.factorize(several)[0], index=frame.index).where(known, -1)


def _is_counter(column: Any) -> bool:
    """Row numbers, in order or not."""
    if column.dtype.kind not in "iu" or len(column) < 3:
        return False
    unnamed = column.name in UNNAMED and column.min() >= 0  # of rows that were chosen from a longer table
    whole = unnamed or (column.max() - column.min() == len(column) - 1 and column.min() in (0, 1))
    return counts_up(column, [0] * len(column)) or bool(whole and column.is_unique)


def _one_series(
    frame: Any, times: Times, series: Any, names: list[str], keys: list[str], notes: _Notes
) -> None:
    """Several rows for most times: these are several series, or it is not known what they are."""
    share = 0.0 if times.when is None else repeated(frame, times.when, series)
    if share <= FEW_REPEATED:
        return
    within = f" of a series by {'+'.join(keys)}" if keys else ""
    found = told_apart_by(frame, times.when, series, names)
    if not found and share < 0.5:
        return
    many = "most" if share >= 0.5 else "many"
    if found:
        raise user_error(
            f"{notes.where}: {many} times{within} are there more than once, for different values of "
            f"{' and '.join(map(repr, found))}.",
            expected="one row for each time, or the columns that tell several series apart",
            fix=f"--set group='{'+'.join([*keys, *found])}'",
        )
    raise user_error(
        f"{notes.where}: most times{within}, by {'+'.join(times.columns)}, are there more than once, "
        f"and neither one column nor two tell these rows apart.",
        expected="one row for each time, or the columns that tell several series apart",
        fix="--set group='A+B'; or take the times out of the file, if its rows are in order.",
    )


def _in_order(
    frame: Any, group: str | None, series: Any, times: Times, notes: _Notes
) -> tuple[Any, Any, Any]:
    """Series after series, each in time order; rows without a time or a group are left out."""
    pandas, when, dates = needs("pandas"), times.when, " and ".join(times.columns)
    known = series >= 0 if when is None else (series >= 0) & when.notna()
    if not known.all():
        notes.done.append(
            f"rows left out, without {' or '.join(filter(None, (dates, group)))}: {int((~known).sum()):,}"
        )
    keys = pandas.DataFrame({"series": series, "when": 0.0 if when is None else when})[known]
    if when is not None and (keys.groupby("series")["when"].diff() < 0).any():
        notes.done.append(f"sorted by {dates}")
    order = keys.sort_values(["series", "when"], kind="stable").index
    return (
        frame.loc[order].reset_index(drop=True),
        series[order].reset_index(drop=True),
        None if when is None else when[order].reset_index(drop=True),
    )


def _numbers(frame: Any, names: list[str], early: Any, notes: _Notes) -> Any:
    """The columns that are numbers, and change, already among the ``early`` rows; the others are named."""
    pandas, found = needs("pandas"), {}
    for name in names:
        column = frame[name]
        if column.dtype.kind in "Mm" or (is_text(column) and looks_like_dates(column)):
            notes.skip("dates", name)
            continue
        number = read_numbers(column, name, notes.where)
        bad = int(column.notna().sum() - number.notna().sum())
        if bad > len(column) / 2 or (is_text(column) and not number.notna().any()):
            notes.skip("text" if is_text(column) else "no number", name)
        elif number.isna().mean() > 0.5:
            notes.skip("mostly empty", name)
        elif number.nunique() < 2 or number[early].nunique() < 2:
            notes.skip("constant, at least in its first half", name)
        else:
            if bad:
                notes.done.append(f"no numbers, taken as missing: {bad:,} of {name}")
            found[name] = number
    if not found:
        why = ", ".join(f"{_few(which)} ({reason})" for reason, which in notes.skipped.items())
        raise user_error(
            f"{notes.where}: no column of numbers that change; {why or 'nothing is left'}.",
            expected="at least one",
            fix="name it with --set columns=NAME, or write it as plain numbers.",
        )
    return pandas.DataFrame(found)


def _filled(found: Any, series: Any, notes: _Notes) -> tuple[Any, Any]:
    """A missing value is the one before it; where there is none before, the row is left out."""
    missing = int(found.isna().to_numpy().sum())
    filled = found.groupby(series.to_numpy()).ffill()
    kept = filled.notna().all(axis=1)
    if missing:
        notes.done.append(f"missing, filled with the value before: {missing:,}")
    if not kept.any():
        raise user_error(
            f"{notes.where}: no row in which all of {_few(list(found.columns))} are known.",
            expected="values that are there at the same time, or before",
            fix="choose fewer with --set columns=NAME+NAME.",
        )
    if not kept.all():
        notes.done.append(f"first rows left out, with nothing to fill them: {int((~kept).sum()):,}")
    return filled[kept].to_numpy(copy=True), kept


def _classes(column: Any, label: str, notes: _Notes) -> tuple[Tensor, tuple[str, ...]]:
    numbers, values = needs("pandas").factorize(column, sort=True)
    if (numbers < 0).any():
        notes.done.append(f"rows without a class in {label}: {int((numbers < 0).sum()):,}")
    if not 2 <= len(values) <= MAX_CLASSES:
        raise user_error(
            f"{notes.where}: label={label!r} has {len(values):,} different values.",
            expected=f"classes: from 2 to {MAX_CLASSES} of them",
        )
    return torch.from_numpy(numbers).long(), tuple(str(value) for value in values)


def _positions(series: Tensor) -> Tensor:
    """Where a row stands in its series, from 0 to 1."""
    counts = torch.bincount(series)
    first = counts.cumsum(0) - counts
    return (torch.arange(len(series)) - first[series]).double() / counts[series]
