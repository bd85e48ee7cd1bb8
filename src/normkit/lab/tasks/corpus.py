"""Files of text: a user's own, or the source of the Python standard library."""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from normkit.errors import user_error
from normkit.lab.tasks.copies import copied

__all__ = ["Corpus", "Parts", "read"]

LEAST = 20_000  # bytes; below that nothing can be learnt, and no part can be kept apart
MAX_BYTES = 256 << 20  # bytes; more is not needed for runs of this size, and must fit every worker
APART = 100_000  # bytes for validation, and as many to judge by; a fifth of all, if that is less
BLOCK = 1024  # bytes, at least, of the pieces into which files are cut where there are too few of them
ENOUGH = 10  # files, to keep whole ones apart
RESULTS = "runs.sqlite"  # a folder with this in it holds our own results, no data


@dataclass(frozen=True)
class Parts:
    """A corpus as a seed divides it, in bytes; no part of the text is in two of them. ``unlike`` says of each
    byte of ``held_out`` and of ``validation`` whether it is in no long copy of the training text."""

    training: Tensor
    validation: Tensor
    held_out: Tensor
    unlike: tuple[Tensor, Tensor]

    @property
    def copied(self) -> float:
        """The share of what was kept apart that is a copy of something trained on."""
        return 1 - float(torch.cat(self.unlike).double().mean())


@dataclass(frozen=True)
class Corpus:
    """Texts in the order of their paths, each content once. ``skipped``: what was left out, by reason."""

    source: str
    files: tuple[tuple[str, bytes], ...]
    skipped: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @functools.cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for _, content in self.files:
            digest.update(hashlib.sha256(content).digest())
        return digest.hexdigest()

    @property
    def size(self) -> int:
        return sum(len(content) for _, content in self.files)

    @property
    def words(self) -> str:
        """Where it is from, how large it is, and what was skipped."""
        count = "one file" if len(self.files) == 1 else f"{len(self.files)} files"
        skipped = [f"{len(names)} {why} ({_few(names)})" for why, names in self.skipped]
        text = f"{self.source}: {self.size / 1e6:.2f} MB in {count}"
        return f"{text}; skipped: {', '.join(skipped)}" if skipped else text

    def split(self, seed: int) -> Parts:
        """Whole files where there are enough and none is a third of all, else pieces of files."""
        want = min(APART, self.size // 5)
        pieces = [content for _, content in self.files]
        if len(pieces) < ENOUGH or max(map(len, pieces)) > self.size / 3:
            block = max(BLOCK, want // 20)
            pieces = [piece for content in pieces for piece in _cut(content, block)]
        order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(seed)).tolist()
        held_out, order = _take([pieces[k] for k in order], order, want)
        validation, order = _take([pieces[k] for k in order], order, want)
        training = _bytes([pieces[k] for k in sorted(order)])
        kept = _bytes(held_out), _bytes(validation)
        unlike = ~copied(kept[0], training), ~copied(kept[1], training)
        return Parts(training, kept[1], kept[0], unlike)


def _take(pieces: list[bytes], numbers: list[int], want: int) -> tuple[list[bytes], list[int]]:
    """As many of the first as are wanted, and the numbers of the others."""
    size = 0
    for k, piece in enumerate(pieces):
        if size >= want:
            return pieces[:k], numbers[k:]
        size += len(piece)
    return pieces, []


def _cut(content: bytes, size: int) -> Iterator[bytes]:
    """Pieces of about that size."""
    count = max(1, len(content) // size)
    for k in range(count):
        yield content[len(content) * k // count : len(content) * (k + 1) // count]


def _bytes(pieces: list[bytes]) -> Tensor:
    joined = bytearray(b"".join(pieces))
    return torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.zeros(0, dtype=torch.uint8)


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def read(where: str | None) -> Corpus:
    """A file, a folder (all that is in it), or a glob; without any of them, Python's own library.

    Hidden files are left out, and folders in which normkit keeps results. What is no text, is empty, cannot
    be read or has the same content as an earlier file is skipped, and named.
    """
    if where is None:
        root = Path(os.__file__).parent
        paths = sorted(root.glob("*.py"))
        source = f"the source of Python {platform.python_version()}'s standard library"
    else:
        root, paths = _paths(where)
        source = os.path.relpath(where) if len(os.path.relpath(where)) < len(where) else where
    seen = []
    for path in paths:
        try:
            found = path.stat()
            seen.append((path, found.st_size, found.st_mtime_ns))
        except OSError:
            seen.append((path, -1, 0))
    return _read(source, root, tuple(seen))


@functools.lru_cache(maxsize=4)
def _read(source: str, root: Path, seen: tuple[tuple[Path, int, int], ...]) -> Corpus:
    """The content of files as they were seen: what has changed since is read again."""
    if sum(size for _, size, _ in seen) > MAX_BYTES:
        raise user_error(
            f"--data {source}: more than {MAX_BYTES >> 20} MB.",
            expected="a sample that every worker can hold in memory",
            fix="name a part of it, for example with a glob: --data 'folder/a*.txt'",
        )
    files: dict[bytes, tuple[str, bytes]] = {}
    skipped: dict[str, list[str]] = {}
    for path, _, _ in seen:
        name = os.path.relpath(path, root)
        if os.path.exists(path) and not os.path.isfile(path):
            kind = "linked folder" if os.path.isdir(path) else "no plain file"
            skipped.setdefault(kind, []).append(name)
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            skipped.setdefault(f"unreadable: {error.strerror}", []).append(name)
            continue
        digest = hashlib.sha256(content).digest()
        if b"\0" in content[:8192]:
            skipped.setdefault("binary", []).append(name)
        elif not content.strip():
            skipped.setdefault("empty", []).append(name)
        elif digest in files:
            skipped.setdefault("with the content of another", []).append(name)
        else:
            files[digest] = name, content
    left = tuple((why, tuple(names)) for why, names in skipped.items())
    found = Corpus(source, tuple(files.values()), left)
    if not files:
        what = ", ".join(f"{len(names)} {why} ({_few(names)})" for why, names in left) or "nothing in it"
        raise user_error(f"--data {source}: {what}.", expected="text files: no NUL bytes, not empty")
    if found.size < LEAST:
        raise user_error(
            f"--data {found.words}, {found.size:,} bytes of text.",
            expected=f"at least {LEAST:,}, to learn from some and keep some apart",
            fix="add more text, or leave --data out for the Python library's own source.",
        )
    return found


def _paths(where: str) -> tuple[Path, list[Path]]:
    """The folder that names are relative to, and the files."""
    if not where.strip():
        raise user_error("--data got an empty name.", expected="a file, a folder, or a glob in quotes")
    path = Path(where).expanduser()
    if path.is_dir():
        return path, _within(path)
    if path.is_file():
        return path.parent, [path]
    matches = sorted(Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file())
    if not matches:
        raise user_error(
            f"--data {where}: there is no such file or folder.",
            expected="a file, a folder, or a glob in quotes",
        )
    return Path(os.path.commonpath([p.parent for p in matches])), matches


def _within(root: Path) -> list[Path]:
    """All files in a folder, and the folders that it links to, which are not followed. One that may not be
    looked into is an error: nobody knows what is missing."""

    def refuse(error: OSError) -> None:
        raise user_error(
            f"--data {root}: {error.filename} cannot be read: {error.strerror}.",
            fix="make it readable, or name what is, for example with a glob: --data 'folder/*.txt'",
        ) from error

    def holds_results(folder: str) -> bool:
        return os.path.exists(os.path.join(folder, RESULTS))  # a Path would raise for what may not be read

    found = []
    for folder, folders, names in os.walk(root, onerror=refuse):
        hidden = [f for f in folders if f.startswith(".") or holds_results(os.path.join(folder, f))]
        folders[:] = sorted(set(folders) - set(hidden))
        links = [f for f in folders if os.path.islink(os.path.join(folder, f))]
        if not holds_results(folder):
            found += [Path(folder) / name for name in (*names, *links) if not name.startswith(".")]
    return sorted(found)
