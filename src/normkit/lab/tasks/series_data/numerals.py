"""Numbers in text: which mark is that of a decimal, and which one groups thousands."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy

from normkit.errors import user_error
from normkit.lab.extras import needs

__all__ = ["NUMERALS", "has_commas", "in_thousandths", "is_text", "read_numbers", "settle_marks"]

MARKS = {"point": (".", ","), "comma": (",", ".")}  # of a decimal, and between groups of three
MOST_UNREAD = 0.05  # of the values of a column may look like numbers, and be none
ENOUGH = 50  # values like 2,362 beside whole ones: with decimals, one of them would be shorter
DIGITS = re.compile(r"[<>≤≥~$€£]*\s*[+-]?[\d.,\s'’]*\d[\d.,\s'’]*[%$€£*]?")


def _numeral(decimal: str, grouping: str) -> re.Pattern[str]:
    d, g = re.escape(decimal), rf"[{grouping}\s'’]"
    grouped = rf"[1-9]\d{{0,2}}(?P<mark>{g})\d{{3}}(?:(?P=mark)\d{{3}})*(?:{d}\d*)?"
    return re.compile(rf"[+-]?(?:{grouped}|\d+(?:{d}\d*)?|{d}\d+)(?:[eE][+-]?\d+)?|[+-]?(?:inf|nan)", re.I)


NUMERALS = {name: _numeral(*marks) for name, marks in MARKS.items()}


def is_text(column: Any) -> bool:
    return column.dtype.kind not in "iufbMm"


def has_commas(column: Any) -> bool:
    """Is it a column of numbers, of which some are written with a comma?"""
    if not is_text(column) or not column.astype(str).str.contains(",", regex=False).any():
        return False
    return _Written(column).share > 0.5


def in_thousandths(column: Any) -> bool:
    """May 2.362 have been a few thousand?"""
    if column.dtype.kind != "f" or not column.notna().any():
        return False
    known = column.dropna()
    return bool(((known * 1000).round() / 1000 == known).all() and (known % 1 != 0).any())


def settle_marks(frame: Any) -> Any:
    """A table that was read as text, with decimal points and nothing between thousands wherever it is
    certain which numbers they are.

    What is not certain in a column may be so from the others: a decimal comma holds for the whole file.
    """
    pandas = needs("pandas")
    written = {name: _Written(frame[name]) for name in frame.columns}
    proven = {found.proof for found in written.values() if found.share > 0.5} - {None}
    usual = proven.pop() if len(proven) == 1 else None
    settled = frame.copy()
    for name, found in written.items():
        style = found.style(usual)
        if style is not None and found.share > 0.5:
            plain = found.plain(style)
            settled[name] = pandas.to_numeric(plain) if found.all_in(style) else plain
    return settled


def read_numbers(column: Any, name: str, where: str) -> Any:
    """Floats; what is no number is missing. An error if it is unclear which numbers they are."""
    number = needs("pandas").to_numeric(column, errors="coerce").astype(float)
    if not is_text(column) or number.notna().sum() == column.notna().sum():
        return number.where(number.abs() != float("inf"))
    written = _Written(column)
    style = written.style(None)
    if style is None and written.share > 0.5:
        raise user_error(
            f"{where}: {name} has {written.example!r}, a decimal comma or one between thousands.",
            expected="numbers that can be read in one way",
            fix="write them with a decimal point and nothing between thousands, or name others with "
            "--set columns=NAME+NAME.",
        )
    number = needs("pandas").to_numeric(written.plain(style or "point"), errors="coerce").astype(float)
    unread = written.other(style or "point")
    if number.notna().mean() > MOST_UNREAD and len(unread) > MOST_UNREAD * column.notna().sum():
        raise user_error(
            f"{where}: {name} has values such as {unread.iloc[0]!r} that look like numbers and cannot be "
            f"read as such: {len(unread):,} of {int(column.notna().sum()):,}.",
            expected="numbers that are all written in the same way",
            fix="write them with a decimal point and nothing between thousands, or name others with "
            "--set columns=NAME+NAME.",
        )
    return number.where(number.abs() != float("inf"))


class _Written:
    """How the values of a column are written, each different one looked at once."""

    def __init__(self, column: Any) -> None:
        pandas = needs("pandas")
        self.index = column.index
        self.codes, unique = pandas.factorize(column.astype(object).map(str, na_action="ignore"))
        self.unique = [text.strip() for text in unique]
        self.counts = numpy.bincount(self.codes[self.codes >= 0], minlength=len(unique))
        self.matches = {
            name: numpy.array([numeral.fullmatch(text) is not None for text in self.unique], dtype=bool)
            for name, numeral in NUMERALS.items()
        }
        self.known = int((self.codes >= 0).sum())

        self.totals = {name: int(self.counts[found].sum()) for name, found in self.matches.items()}

    @cached_property
    def share(self) -> float:
        """Of the values, those that are numbers in one way or the other."""
        return float(self.counts[numpy.any(list(self.matches.values()), axis=0)].sum() / max(1, self.known))

    @property
    def proof(self) -> str | None:
        """The one way in which more of the values are numbers."""
        most = max(self.totals, key=lambda name: self.totals[name])
        return most if self.totals[most] > min(self.totals.values()) else None

    @property
    def example(self) -> str:
        return next((text for text in self.unique if "," in text), self.unique[0])

    def style(self, usual: str | None) -> str | None:
        """The way in which it is written, by its own values or as is usual in the file; None if unclear."""
        if self.proof is not None or usual is not None:
            return self.proof or usual
        grouped = [
            text for text in self.unique if ("," in text or "." in text) and NUMERALS["point"].fullmatch(text)
        ]
        plain = [text.lstrip("+-") for text in self.unique if text.lstrip("+-").isdigit()]
        commas = sum("," in text for text in grouped)
        if 0 < commas < len(grouped):
            return None
        # 1234 beside 2,362: nothing stands between thousands. 999 beside many like 2,362: it does.
        if any(len(text) > 3 for text in plain):
            return "comma" if commas else "point"
        if plain and len(grouped) >= ENOUGH:
            return "point" if commas else "comma"
        return None if commas else "point"

    def plain(self, style: str) -> Any:
        """The values as text, numbers with a decimal point and nothing between thousands."""
        pandas = needs("pandas")
        decimal, grouping = MARKS[style]
        values = [
            re.sub(rf"[{grouping}\s'’]", "", text).replace(decimal, ".") if good else text
            for text, good in zip(self.unique, self.matches[style], strict=True)
        ]
        return pandas.Series([*values, None], dtype=object).iloc[self.codes].set_axis(self.index)

    def all_in(self, style: str) -> bool:
        return bool(self.matches[style].all())

    def other(self, style: str) -> Any:
        """The values that look like numbers, and are none in this way."""
        pandas = needs("pandas")
        odd = [
            DIGITS.fullmatch(text) is not None and not good
            for text, good in zip(self.unique, self.matches[style], strict=True)
        ]
        rows = pandas.Series([*odd, False], dtype=bool).to_numpy()[self.codes]
        return pandas.Series([*self.unique, ""], dtype=object).iloc[self.codes[rows]]
