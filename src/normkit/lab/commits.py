"""Which commit a result belongs to: that of the code, and the last one that touched a study's rules."""

from __future__ import annotations

import subprocess
from pathlib import Path

from normkit.errors import user_error

__all__ = ["changed", "head", "last_change"]

_CODE = (":(top)*.py", ":(top)*.cpp", ":(top)*.h")  # not pages, nor the rows that a run itself writes


def head(folder: Path) -> str | None:
    """The commit that is checked out, with a mark if code differs from it; None outside of a repository."""
    found = _git(folder, "rev-parse", "--short=12", "HEAD")
    if found is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", *_CODE)
    return found + (" with changes" if changed else "")


def last_change(file: Path) -> str | None:
    """The commit that a file has its text from; None if it is in none."""
    return _git(file.parent, "log", "-1", "--format=%h", "--abbrev=12", "--", file.name) or None


def changed(file: Path) -> bool:
    """Is the file in a repository, and other than it was committed?"""
    found = _git(file.parent, "status", "--porcelain", "--", file.name)
    if found is None and any((folder / ".git").exists() for folder in file.parents):
        raise user_error(
            f"git does not say whether {file} is as it was committed.",
            expected=f"git on the PATH, and an answer to git -C {file.parent} status",
            fix="see what that says, mend it, and start again.",
        )
    return bool(found)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        found = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
