"""Files of text: a user's own, or the source of the Python standard library."""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from normkit.errors import refusal

__all__ = ["Corpus", "read"]

LEAST = 20_000  # bytes; below that nothing can be learnt, and no part can be kept apart
MOST = 256 << 20  # bytes; more is not needed for runs of this size, and must fit every worker
KEPT_APART = 10  # one file of so many is never trained on


@dataclass(frozen=True)
class Corpus:
    """Files, in the order of their names.

    ``unseen`` are those that are kept apart: every tenth, or the last tenth of a single file.
    """

    source: str
    files: tuple[tuple[str, bytes], ...]
    unseen: tuple[tuple[str, bytes], ...]

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


@functools.lru_cache(maxsize=4)
def read(where: str | None, least: int = LEAST) -> Corpus:
    """A file, a folder (all that is in it), or a glob; without any of them, Python's own library."""
    if where is None:
        root = Path(os.__file__).parent
        paths = sorted(root.glob("*.py"))
        source = f"the source of Python {platform.python_version()}'s standard library"
    else:
        paths = _paths(where)
        source = where
    files, binary, total = [], 0, 0
    for path in paths:
        try:
            total += path.stat().st_size
            if total > MOST:
                raise refusal(
                    f"--data {source}: more than {MOST >> 20} MB.",
                    expected="a sample that every worker can hold in memory",
                    fix="name a part of it, for example with a glob: --data 'folder/a*.txt'",
                )
            content = path.read_bytes()
        except OSError as error:
            raise refusal(f"--data {source}: {path} cannot be read: {error.strerror}.") from error
        if b"\0" in content[:8192]:
            binary += 1
        elif content.strip():
            files.append((path.name, content))
    if not files:
        raise refusal(
            f"--data {source}: {f'{binary} binary files and no text' if binary else 'nothing in it'}.",
            expected="text files: no NUL bytes, not empty",
        )
    size = sum(len(content) for _, content in files)
    if size < least:
        raise refusal(
            f"--data {source}: {size:,} bytes of text.",
            expected=f"at least {least:,}, to learn from some and keep some apart",
            fix="add more text, or leave --data out for the Python library's own source.",
        )
    if len(files) < KEPT_APART:  # too few to keep whole ones apart: the end of each
        cut = [(name, c, len(c) - len(c) // KEPT_APART) for name, c in files]
        return Corpus(source, tuple((n, c[:k]) for n, c, k in cut), tuple((n, c[k:]) for n, c, k in cut))
    training = tuple(f for i, f in enumerate(files) if i % KEPT_APART)
    return Corpus(source, training, tuple(files[::KEPT_APART]))


def _paths(where: str) -> list[Path]:
    path = Path(where).expanduser()
    if path.is_dir():
        inside = (p for p in path.rglob("*") if not any(part.startswith(".") for part in p.parts))
        return sorted(p for p in inside if p.is_file())
    if path.exists():
        return [path]
    found = sorted(Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file())
    if not found:
        raise refusal(
            f"--data {where}: there is no such file or folder.",
            expected="a file, a folder, or a glob in quotes",
        )
    return found
