"""Where runs are kept: one SQLite file in a folder, written by one process, readable at any time."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from normkit._version import __version__
from normkit.errors import NormkitError, user_error
from normkit.lab.design import Cell
from normkit.lab.measuring import Outcome
from normkit.lab.run import Run
from normkit.lab.stored import stored_keys, stored_outcome, stored_run, stored_table

__all__ = ["Store"]

FORMAT = 2  # of the file; SQLite keeps it as user_version
APPLICATION = 0x6E6B6974  # "nkit": SQLite's application_id
FILE, LOCK = "runs.sqlite", "lock.sqlite"
ROOM = 64 << 20  # bytes that must be free before training starts: rows and a page need far less

_TABLES = """
CREATE TABLE runs (key TEXT PRIMARY KEY, config TEXT NOT NULL, data TEXT NOT NULL, code TEXT NOT NULL,
    status TEXT NOT NULL, best_loss REAL, final_loss REAL, outcome TEXT NOT NULL, finished TEXT NOT NULL);
CREATE TABLE sweeps (id INTEGER PRIMARY KEY, started TEXT NOT NULL, about TEXT NOT NULL, keys TEXT NOT NULL);
"""
ROOMS = (None, "/dev/shm")  # for a copy: where temporary files go, or memory
# Of a damaged schema Python's sqlite3 cannot even put the error into words.
_ERRORS = (sqlite3.Error, UnicodeDecodeError)
_COLUMNS = "key, config, data, code, outcome"


class Store:
    """The runs in a folder.

    Args:
        folder: made if ``write``, and it is not there.
        write: hold the folder, so that no other sweep writes to it.
    """

    def __init__(self, folder: str | Path, *, write: bool = False) -> None:
        self.folder, self.write = Path(folder), write
        self._lock: sqlite3.Connection | None = None
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        if write:
            self._make_folder()
        elif not (self.folder / FILE).is_file():
            raise user_error(
                f"{folder} has no {FILE}.",
                expected="the folder of a comparison",
                fix="normkit compare --out …",
            )
        try:
            if write:
                self._hold()
            self._open()
        except BaseException:
            self.close()
            raise

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / ".writable"
            probe.write_bytes(b"x" * 4096)
            probe.unlink()
        except OSError as error:
            raise self._cannot_write(error) from error
        free = shutil.disk_usage(self.folder).free
        if free < ROOM:
            raise user_error(
                f"{self.folder}: {free >> 20} MB are free on its disk.",
                expected=f"at least {ROOM >> 20} MB, before anything is trained",
                fix="make room, or choose another folder with --out.",
            )

    def _cannot_write(self, error: Exception) -> NormkitError:
        reason = getattr(error, "strerror", None) or str(error)
        return user_error(
            f"{self.folder} cannot be written: {reason}.",
            expected="a folder that can be, on a disk with room",
            fix="make room or choose another folder with --out; what was stored before is still there.",
        )

    def _hold(self) -> None:
        """SQLite's own lock on a file of its own: the system frees it when this process ends, however."""
        self._lock = sqlite3.connect(self.folder / LOCK, timeout=0, isolation_level=None)
        try:
            self._lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise self._cannot_write(error) from error
            raise user_error(
                f"{self.folder} is in use by another sweep.",
                expected="one sweep a folder at a time",
                fix="wait for it, or choose another folder with --out.",
            ) from error

    def _open(self) -> None:
        """To read, SQLite wants to put an index of its log beside the file. Where it may not, or has no room,
        a copy is read; the log belongs to it, the index does not."""
        path = self.folder / FILE
        if self.write or os.access(self.folder, os.W_OK):
            try:
                self._connect(path)
                return
            except NormkitError as error:
                if self.write or not isinstance(error.__cause__, sqlite3.OperationalError):
                    raise
                self._disconnect()
        for room in ROOMS:
            with suppress(OSError):
                self._copy = tempfile.TemporaryDirectory(dir=room)
                for name in (FILE, f"{FILE}-wal"):
                    if (self.folder / name).is_file():
                        shutil.copyfile(self.folder / name, Path(self._copy.name) / name)
                break
            if self._copy is not None:
                self._copy.cleanup()
        else:
            raise user_error(
                f"{path} cannot be read: there is no room for the index of its log, nor for a copy.",
                expected="a folder that can be written, or room for temporary files",
                fix="make room, or set TMPDIR to a folder with room.",
            )
        self._connect(Path(self._copy.name) / FILE)

    def _connect(self, path: Path) -> None:
        mode = "rwc" if self.write else "ro"
        try:
            self._db = sqlite3.connect(f"file:{_quoted(path)}?mode={mode}", uri=True, timeout=30)
            self._db.text_factory = lambda text: text.decode(errors="replace")  # one bad byte, one bad row
            self._db.execute("PRAGMA trusted_schema=OFF")
            if self.write and not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                self._db.execute("PRAGMA journal_mode=WAL")
                marks = f"PRAGMA application_id={APPLICATION}; PRAGMA user_version={FORMAT};"
                self._db.executescript(f"BEGIN; {marks} {_TABLES} COMMIT;")
            application = self._db.execute("PRAGMA application_id").fetchone()[0]
            found = self._db.execute("PRAGMA user_version").fetchone()[0]
            tables = self._db.execute("SELECT type, name FROM sqlite_master WHERE sql NOT NULL").fetchall()
        except _ERRORS as error:
            if isinstance(error, sqlite3.OperationalError) and self.write:
                raise self._cannot_write(error) from error
            raise user_error(
                f"{self.folder / FILE} cannot be read: {error}.",
                expected="a file that normkit compare has written",
                fix="choose another folder with --out; this file was left as it is.",
            ) from error
        # A view or a trigger would run whatever its maker has put into it.
        ours = application == APPLICATION and set(tables) == {("table", "runs"), ("table", "sweeps")}
        if not ours or found != FORMAT:
            what = (
                f"format {found}" if application == APPLICATION and found != FORMAT else "no runs of normkit"
            )
            raise user_error(
                f"{self.folder / FILE} holds {what}.",
                expected=f"format {FORMAT}, which normkit {__version__} reads",
                fix="use the version that wrote it, or another folder; this file was left as it is.",
            )

    def close(self) -> None:
        self._disconnect()
        if self._lock is not None:
            with suppress(sqlite3.Error):
                self._lock.close()
        if self._copy is not None:
            self._copy.cleanup()

    def _disconnect(self) -> None:
        connection = getattr(self, "_db", None)
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, about: dict[str, Any], keys: Iterable[str]) -> None:
        """Note a sweep: what the page says of it, and the keys of all its runs."""
        self._change(
            "INSERT INTO sweeps (started, about, keys) VALUES (?, ?, ?)",
            (_now(), json.dumps(about), json.dumps(list(keys))),
        )

    def amend(self, about: dict[str, Any], keys: Iterable[str]) -> None:
        """The same for the latest sweep, once more is known."""
        self._change(
            "UPDATE sweeps SET about = ?, keys = ? WHERE id = (SELECT max(id) FROM sweeps)",
            (json.dumps(about), json.dumps(list(keys))),
        )

    def put(self, key: str, run: Run | Cell, data: str, code: str, outcome: Outcome) -> None:
        """Keep a run; one of the same key gives way."""
        self._change(
            "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(key, json.dumps(run.config()), data, code, outcome.status),
                *(outcome.best_loss, outcome.final_loss, json.dumps(outcome.as_dict()), _now()),
            ),
        )

    def _change(self, statement: str, values: tuple[Any, ...]) -> None:
        try:
            with self._db:
                self._db.execute(statement, values)
        except sqlite3.OperationalError as error:
            raise self._cannot_write(error) from error
        except _ERRORS as error:
            raise self._damaged(str(error)) from error

    def keys(self) -> list[str]:
        """Of all runs in the folder, whichever sweep they are of."""
        return [str(key) for (key,) in self._db.execute("SELECT key FROM runs")]

    def done(self, keys: Iterable[str]) -> dict[str, Outcome]:
        """Those of the runs that have ended by themselves; one that failed, or was stopped at its limit, is
        to be tried again."""
        return {key: outcome for key, _, outcome in self.runs(keys) if outcome.error is None}

    def runs(self, keys: Iterable[str] | None = None) -> list[tuple[str, Any, Outcome]]:
        """What is stored, in the order of ``keys``, which are those of the latest sweep by default."""
        return self.read(self.latest()[1] if keys is None else keys)[0]

    def read(self, keys: Iterable[str]) -> tuple[list[tuple[str, Any, Outcome]], dict[str, str]]:
        """The same, and what is there but cannot be read: by key, with the reason."""
        wanted = list(keys)
        rows, unread = self._rows(wanted)
        found = []
        for key in wanted:
            if key in rows:
                config, data, code, outcome = rows[key]
                try:
                    found.append((key, stored_run(config, key, data, code), stored_outcome(outcome)))
                except NormkitError as error:
                    unread[key] = str(error).partition("\n")[0]
        return found, unread

    def _rows(self, wanted: Sequence[str]) -> tuple[dict[str, tuple[Any, ...]], dict[str, str]]:
        """All at once; behind a damaged page one by one, each found by its key."""
        rows: dict[str, tuple[Any, ...]] = {}
        unread: dict[str, str] = {}
        try:
            with closing(self._db.execute(f"SELECT {_COLUMNS} FROM runs")) as cursor:
                rows.update((str(key), row) for key, *row in cursor)
        except _ERRORS:
            for key in [key for key in wanted if key not in rows]:
                try:
                    row = self._db.execute(f"SELECT {_COLUMNS} FROM runs WHERE key = ?", (key,)).fetchone()
                except _ERRORS as error:
                    unread[key] = str(error)
                else:
                    rows |= {} if row is None else {key: row[1:]}
        return rows, unread

    def newest(self) -> tuple[dict[str, Any], list[str]] | None:
        """The same, or None where there is no sweep, or none that can be read."""
        with suppress(NormkitError):
            return self.latest()
        return None

    def latest(self) -> tuple[dict[str, Any], list[str]]:
        """What the latest sweep is about, and the keys of its runs."""
        try:
            row = self._db.execute("SELECT about, keys FROM sweeps ORDER BY id DESC LIMIT 1").fetchone()
        except _ERRORS as error:
            raise self._damaged(str(error)) from error
        if row is None:
            raise user_error(f"{self.folder} has no sweep in it yet.", fix="normkit compare --out …")
        try:
            return stored_table(row[0]), stored_keys(row[1])
        except NormkitError as error:
            raise self._damaged(f"the description of its latest sweep: {error}") from error

    def _damaged(self, reason: str) -> NormkitError:
        return user_error(
            f"{self.folder / FILE} is damaged: {reason}.",
            expected="a file as normkit compare has written it",
            fix="the command of that sweep again: it keeps the runs that can be read. If that does not help, "
            "choose another folder with --out.",
        )


def _quoted(path: Path) -> str:
    """For SQLite's file: addresses."""
    return os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
