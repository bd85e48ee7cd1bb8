"""A file that is there whole, or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from normkit.errors import user_error

__all__ = ["write"]


def write(path: Path, text: str) -> Path:
    """What was there is replaced when the new one is complete."""
    beside = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_text(text, encoding="utf-8", errors="backslashreplace")
            os.replace(beside, path)
        except BaseException:  # Ctrl-C too
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise user_error(f"{path} could not be written: {error.strerror or error}.") from error
    return path
