"""The runs of a comparison in the formats of others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from normkit.errors import refusal
from normkit.lab.comparison import Comparison, needs

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
    try:
        comparison.table.to_parquet(path, index=False)
    except OSError as error:
        raise refusal(f"{path} cannot be written: {error.strerror}.") from error
    return path


def check_tensorboard() -> None:
    """Say before the training that something is missing, not after it."""
    needs("tensorboard")


def to_tensorboard(comparison: Comparison) -> Path:
    """One folder a run, with its curves; what was there is replaced."""
    check_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    path = comparison.folder / "tensorboard"
    shutil.rmtree(path, ignore_errors=True)
    for run, outcome in comparison.results:
        name = "_".join(str(part) for part in (run, run.last)).replace(", ", "_").replace(" ", "")
        name = name.replace("/", "-").replace(":", "-")
        with SummaryWriter(str(path / name)) as writer:
            for title, curve in (("loss/training", outcome.curve), ("loss/held out", outcome.held_out)):
                for step, loss in curve:
                    if loss is not None:
                        writer.add_scalar(title, loss, step)
    return path


FORMS: dict[str, Callable[[Comparison], str | Path]] = {
    "json": to_json,
    "csv": to_csv,
    "parquet": to_parquet,
    "tensorboard": to_tensorboard,
}
