"""A table of one's own, CSV or Parquet; separator, header and decimal comma are found out."""

from __future__ import annotations

import contextlib
import csv
import gzip
import re
import stat
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normkit.errors import NormkitError, user_error
from normkit.lab.extras import needs
from normkit.lab.tasks.series_data.numerals import NUMERALS, has_commas, in_thousandths, settle_marks

__all__ = ["read_frame"]

MAX_BYTES = 256 << 20  # of a file: it must fit every worker
HEAD = 1 << 16  # bytes that are looked at before the rest is read
LINES = 50  # of them
SEPARATORS = (";", "\t", "|", ",")  # in this order: a comma may also be that of a decimal
NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?|nan|inf", re.IGNORECASE)
# What pandas takes for missing; the names of classes and of series are missing only if they are empty.
MISSING = (
    *("", "?", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
EXPECTED = "a CSV or Parquet file: a row for each time, a column for each thing that was measured"


@dataclass(frozen=True)
class _Layout:
    """How a CSV file is written. ``skipped``: lines of comment before it begins."""

    encoding: str
    separator: str
    header: bool
    skipped: int
    trailing: bool  # a separator more at the end of every line


def read_frame(where: str, text: Sequence[str] = ()) -> Any:
    """The table in a file, as a pandas.DataFrame; what was its index is a column of it.

    The columns in ``text`` are names, whatever they look like: only what is empty is missing there.
    """
    path = Path(where).expanduser()
    if path.is_dir():
        raise user_error(
            f"--data {where}: it is a folder.",
            expected=EXPECTED,
            fix="name one file; several series in it are told apart with --set group=COLUMN.",
        )
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) or _is_a_device(path):
            raise user_error(
                f"--data {where}: it is no regular file.",
                expected=EXPECTED,
                fix="save it in a file first: it is read again by every worker.",
            )
        size, magic = about.st_size, _head(path, plain=True)[:4]
    except FileNotFoundError:
        raise user_error(f"--data {where}: there is no such file.", expected=EXPECTED) from None
    except OSError as error:
        raise user_error(f"--data {where} cannot be read: {error.strerror}.", expected=EXPECTED) from error
    if size > MAX_BYTES:
        raise user_error(
            f"--data {where}: {size >> 20} MB.",
            expected=f"at most {MAX_BYTES >> 20} MB: every worker holds it in memory",
            fix="keep the columns and the years that matter.",
        )
    pandas = needs("pandas")
    with _explained(where):
        frame = _parquet(path) if magic == b"PAR1" else _csv(path, where, text)
    if frame.index.nlevels > 1 or not isinstance(frame.index, pandas.RangeIndex):
        frame = frame.reset_index()
    frame.columns = [str(name) for name in frame.columns]
    if not len(frame) or not len(frame.columns):
        raise user_error(f"--data {where}: no rows.", expected=EXPECTED)
    return frame


def _is_a_device(path: Path) -> bool:
    """/dev/stdin may be a file, and another one for every worker."""
    parts = path.absolute().parts[1:3]
    return parts[:1] in (("dev",), ("proc",)) and parts != ("dev", "shm")


@contextlib.contextmanager
def _explained(where: str) -> Iterator[None]:
    """What pandas or pyarrow say of a file that is broken."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except NormkitError:
        raise
    except (OSError, EOFError, csv.Error, ValueError, zlib.error) as error:  # pandas' own is a ValueError
        said = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise user_error(f"--data {where} cannot be read: {said}.", expected=EXPECTED) from error


def _parquet(path: Path) -> Any:
    needs("pyarrow")
    return needs("pandas").read_parquet(path, engine="pyarrow")


def _head(path: Path, *, plain: bool = False) -> bytes:
    with gzip.open(path) if path.suffix == ".gz" and not plain else path.open("rb") as file:
        return file.read(HEAD)


def _csv(path: Path, where: str, text: Sequence[str]) -> Any:
    pandas, layout = needs("pandas"), _layout(_head(path), where)
    options: dict[str, Any] = {
        "sep": layout.separator,
        "header": 0 if layout.header else None,
        "skiprows": layout.skipped,
        "encoding": layout.encoding,
        "compression": "gzip" if path.suffix == ".gz" else None,
        "index_col": False if layout.trailing else None,
        "na_values": ["?"],
        "skipinitialspace": True,
    }
    if layout.separator != r"\s+":
        options["low_memory"] = False
    names = list(pandas.read_csv(path, nrows=0, **options).columns) if text else []
    named = [name for k, name in enumerate(names) if _name(name, k, layout) in text]
    if named:
        options |= {
            "na_values": {name: [""] if name in named else MISSING for name in names},
            "keep_default_na": False,
            "dtype": dict.fromkeys(named, str),
        }
    frame = pandas.read_csv(path, **options)
    others = [name for name in frame.columns if name not in named]
    if any(has_commas(frame[n]) or (layout.separator != "," and in_thousandths(frame[n])) for n in others):
        read = pandas.read_csv(path, **{**options, "dtype": str})
        settled = settle_marks(read[[name for name in read.columns if name not in named]])
        for name in settled.columns:
            if frame[name].dtype.kind not in "iub":
                frame[name] = settled[name]
    frame.columns = [_name(name, k, layout) for k, name in enumerate(frame.columns)]
    return frame


def _name(name: Any, place: int, layout: _Layout) -> str:
    return str(name) if layout.header else f"column {place + 1}"


def _layout(head: bytes, where: str) -> _Layout:
    if not head.strip():
        raise user_error(f"--data {where}: the file is empty.", expected=EXPECTED)
    if b"\0" in head:
        raise user_error(
            f"--data {where}: neither text nor Parquet.",
            expected=EXPECTED,
            fix="save it as CSV in UTF-8; Excel does so with File, Save as.",
        )
    try:
        encoding, text = "utf-8-sig", head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        cut = error.start > len(head) - 4  # in the midst of a letter
        encoding = "utf-8-sig" if cut else "latin-1"
        text = head.decode(encoding, "replace")
    lines = text.splitlines()[: -1 if len(head) == HEAD else None] or [text]
    skipped = next((k for k, line in enumerate(lines) if not line.startswith("#")), 0)
    lines = [line for line in lines[skipped : skipped + LINES] if line.strip()]
    separator = _separator(lines)
    fields = [_fields(line, separator) for line in lines[:2]]
    first, second = fields[0], fields[-1]
    trailing = len(second) > len(first) and not second[-1].strip()
    return _Layout(encoding, separator, _is_header(first, second), skipped, trailing)


def _separator(lines: list[str]) -> str:
    """What cuts every line into the same number of fields, at least two; else what cuts the most lines so."""
    if len(lines) > 1 and not any(mark in line for mark in ";\t|" for line in lines) and "," not in lines[0]:
        values = [line.strip().strip('"') for line in lines[1:]]
        if all(any(numeral.fullmatch(value) for numeral in NUMERALS.values()) for value in values):
            return ";"  # one column of numbers, of which some have a comma
    best, share = ",", 0.0
    for separator in (*SEPARATORS, r"\s+"):
        counts = [len(_fields(line, separator)) for line in lines]
        usual = max(set(counts), key=counts.count)
        same = counts.count(usual) / len(counts) if usual > 1 else 0.0
        if same > share:
            best, share = separator, same
    return best


def _fields(line: str, separator: str) -> list[str]:
    if separator == r"\s+":
        return line.split()
    return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])


def _is_header(first: list[str], second: list[str]) -> bool:
    """Is there a name over a number? A line without any number is a header, too."""
    numbers = [NUMBER.fullmatch(field.strip()) is not None for field in first]
    below = [NUMBER.fullmatch(field.strip()) is not None for field in second]
    over = any(under and not here for here, under in zip(numbers, below, strict=False))
    return over or not any(numbers)
