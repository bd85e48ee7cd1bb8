"""Which commit a result belongs to: that of the code, and the last one that touched a study's rules."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["changed", "head", "last_change"]


def head(folder: Path) -> str | None:
    """The commit that is checked out, with a mark if files differ from it; None outside of a repository."""
    found = _git(folder, "rev-parse", "--short=12", "HEAD")
    if found is None:
        return None
    return found + (" with changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def last_change(file: Path) -> str | None:
    """The commit that a file has its text from; None if it is in none."""
    return _git(file.parent, "log", "-1", "--format=%h", "--abbrev=12", "--", file.name) or None


def changed(file: Path) -> bool:
    """Is the file in a repository, and other than it was committed?"""
    inside = _git(file.parent, "rev-parse", "--is-inside-work-tree") == "true"
    return inside and bool(_git(file.parent, "status", "--porcelain", "--", file.name))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        found = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
