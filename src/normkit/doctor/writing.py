"""A file that is there whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from normkit.errors import user_error

__all__ = ["write"]


def write(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise user_error(f"{path} could not be written: {error.strerror or error}.") from error
    return path
