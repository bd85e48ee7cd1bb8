"""The runs of a comparison in the formats of others."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from normkit.errors import user_error
from normkit.lab.comparison import Comparison
from normkit.lab.extras import needs
from normkit.lab.run import Run

__all__ = ["FORMS", "check_tensorboard", "to_csv", "to_json", "to_parquet", "to_tensorboard"]


def to_json(comparison: Comparison) -> str:
    """A list with one object a run."""
    return json.dumps(comparison.rows, indent=2)


def to_csv(comparison: Comparison) -> str:
    text: str = comparison.table.to_csv(index=False)
    return text.rstrip("\n")


def to_parquet(comparison: Comparison) -> Path:
    needs("pyarrow")
    path = comparison.folder / "runs.parquet"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        comparison.table.to_parquet(beside, index=False)
        os.replace(beside, path)  # a link is replaced, and not followed
    except (OSError, OverflowError, ValueError) as error:  # pyarrow's own are ValueErrors
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise user_error(f"{path} cannot be written: {_reason(error)}.", fix="--csv or --json") from error
    return path


def check_tensorboard() -> None:
    """Say before the training that something is missing, not after it."""
    needs("tensorboard")


def to_tensorboard(comparison: Comparison) -> Path:
    """One folder a run, with its curves; what was there is replaced."""
    check_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    path = comparison.folder / "tensorboard"
    try:
        if path.is_symlink():
            path.unlink()
        shutil.rmtree(path, ignore_errors=True)
        for run, outcome in comparison.results:
            with SummaryWriter(str(path / _folder_name(run))) as writer:
                for title, curve in (
                    ("loss/training", outcome.curve),
                    ("loss/validation", outcome.validation),
                ):
                    for step, loss in curve:
                        if loss is not None:
                            writer.add_scalar(title, loss, step)
    except OSError as error:
        raise user_error(f"{path} cannot be written: {_reason(error)}.") from error
    return path


def _folder_name(run: Run) -> str:
    """The run in words, as far as every file system takes them; a hash tells long ones apart."""
    words = f"{run}_{run.last}".replace(", ", "_").replace(" ", "")
    plain = re.sub(r"[^\w.+=-]", "-", words, flags=re.ASCII)
    if plain == words and len(words) <= 120:
        return words
    return f"{plain[:120]}_{hashlib.sha256(words.encode(errors='replace')).hexdigest()[:8]}"


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).rstrip(".")


FORMS: dict[str, Callable[[Comparison], str | Path]] = {
    "json": to_json,
    "csv": to_csv,
    "parquet": to_parquet,
    "tensorboard": to_tensorboard,
}
