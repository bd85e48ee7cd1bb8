"""The results as one file: what they were measured on, then one row a line, so that a diff reads well."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from normkit.errors import user_error

__all__ = ["check_path", "write"]


def write(path: Path, head: dict[str, Any], rows: Sequence[Any]) -> None:
    """``head`` is plain data, each row a dataclass of plain data."""
    lines = ",\n".join(f"    {json.dumps(asdict(row))}" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(head, indent=2)[:-2] + f',\n  "rows": [\n{lines}\n  ]\n}}\n')


def check_path(option: str, path: str | None) -> Path | None:
    """A file that can be written, asked before minutes of work and not after."""
    if path is None:
        return None
    found = Path(path)
    try:
        found.parent.mkdir(parents=True, exist_ok=True)
        with found.open("a"):
            pass
    except OSError as error:
        raise user_error(
            f"{option} got {path!r}: {error.strerror}.", expected="a file that can be written"
        ) from None
    return found
