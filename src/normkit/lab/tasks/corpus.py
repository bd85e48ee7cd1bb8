"""Files of text: a user's own, or the source of the Python standard library."""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from normkit.errors import user_error

__all__ = ["Corpus", "read"]

LEAST = 20_000  # bytes; below that nothing can be learnt, and no part can be kept apart
MAX_BYTES = 256 << 20  # bytes; more is not needed for runs of this size, and must fit every worker
KEPT_APART = 10  # one file of so many is never trained on
RESULTS = "runs.sqlite"  # a folder with this in it holds our own results, no data


@dataclass(frozen=True)
class Corpus:
    """Files, in the order of their paths.

    ``unseen`` is what is kept apart: every tenth file, or the last tenth of each where that would be too
    little, because there are few files or the chosen ones are small.
    """

    source: str
    files: tuple[tuple[str, bytes], ...]
    unseen: tuple[tuple[str, bytes], ...]
    count: int

    @functools.cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for part in (self.files, self.unseen):
            for _, content in part:
                digest.update(hashlib.sha256(content).digest())
            digest.update(b"|")
        return digest.hexdigest()

    @property
    def size(self) -> int:
        return sum(len(content) for _, content in (*self.files, *self.unseen))


def read(where: str | None) -> Corpus:
    """A file, a folder (all that is in it), or a glob; without any of them, Python's own library.

    Hidden files are left out, and folders in which normkit keeps results.
    """
    if where is None:
        root = Path(os.__file__).parent
        paths = sorted(root.glob("*.py"))
        source = f"the source of Python {platform.python_version()}'s standard library"
    else:
        root, paths = _paths(where)
        source = os.path.relpath(where) if len(os.path.relpath(where)) < len(where) else where
    try:
        seen = tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
    except OSError as error:
        raise user_error(f"--data {source}: {error.filename} cannot be read: {error.strerror}.") from error
    return _read(source, root, seen)


@functools.lru_cache(maxsize=4)
def _read(source: str, root: Path, seen: tuple[tuple[Path, int, int], ...]) -> Corpus:
    """The content of files as they were seen: what has changed since is read again."""
    if sum(size for _, size, _ in seen) > MAX_BYTES:
        raise user_error(
            f"--data {source}: more than {MAX_BYTES >> 20} MB.",
            expected="a sample that every worker can hold in memory",
            fix="name a part of it, for example with a glob: --data 'folder/a*.txt'",
        )
    files, binary = [], 0
    for path, _, _ in seen:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise user_error(f"--data {source}: {path} cannot be read: {error.strerror}.") from error
        if b"\0" in content[:8192]:
            binary += 1
        elif content.strip():
            files.append((os.path.relpath(path, root), content))
    if not files:
        raise user_error(
            f"--data {source}: {f'{binary} binary files and no text' if binary else 'nothing in it'}.",
            expected="text files: no NUL bytes, not empty",
        )
    size = sum(len(content) for _, content in files)
    if size < LEAST:
        raise user_error(
            f"--data {source}: {size:,} bytes of text.",
            expected=f"at least {LEAST:,}, to learn from some and keep some apart",
            fix="add more text, or leave --data out for the Python library's own source.",
        )
    unseen = tuple(files[::KEPT_APART])
    if len(files) >= KEPT_APART and sum(len(c) for _, c in unseen) >= size / (3 * KEPT_APART):
        training = tuple(f for i, f in enumerate(files) if i % KEPT_APART)
        return Corpus(source, training, unseen, len(files))
    cut = [(name, c, len(c) - len(c) // KEPT_APART) for name, c in files]
    start, end = tuple((n, c[:k]) for n, c, k in cut), tuple((n, c[k:]) for n, c, k in cut)
    return Corpus(source, start, end, len(files))


def _paths(where: str) -> tuple[Path, list[Path]]:
    """The folder that names are relative to, and the files."""
    if not where.strip():
        raise user_error("--data got an empty name.", expected="a file, a folder, or a glob in quotes")
    path = Path(where).expanduser()
    if path.is_dir():
        found = []
        for folder, folders, names in os.walk(path):
            hidden = [f for f in folders if f.startswith(".") or (Path(folder) / f / RESULTS).exists()]
            folders[:] = sorted(set(folders) - set(hidden))
            if not (Path(folder) / RESULTS).exists():
                found += [Path(folder) / name for name in names if not name.startswith(".")]
        return path, sorted(p for p in found if p.is_file())
    if path.is_file():
        return path.parent, [path]
    matches = sorted(Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file())
    if not matches:
        raise user_error(
            f"--data {where}: there is no such file or folder.",
            expected="a file, a folder, or a glob in quotes",
        )
    return Path(os.path.commonpath([p.parent for p in matches])), matches
