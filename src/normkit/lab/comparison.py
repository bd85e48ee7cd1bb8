"""The result of a comparison, in a notebook as on a page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normkit.errors import NormkitError, user_error
from normkit.lab.analysis import Summary, row, summarise
from normkit.lab.measuring import Outcome
from normkit.lab.run import Run
from normkit.lab.store import Store
from normkit.lab.stored import check_about

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go

__all__ = ["Comparison", "needs", "unreadable"]


class Comparison:
    """Runs, and what they say.

    ``recommendation`` is one sentence, ``arms`` a table of the arms, ``table`` one of the runs, ``figures``
    has plotly's figures by name, ``save`` writes the page.
    """

    def __init__(
        self,
        about: dict[str, Any],
        results: Sequence[tuple[Run, Outcome]],
        folder: Path,
        unread: Sequence[str] = (),
    ) -> None:
        self.about, self.results, self.folder, self.unread = about, list(results), folder, list(unread)

    @classmethod
    def load(cls, folder: str | Path) -> Comparison:
        """The latest comparison in a folder, finished or not."""
        with Store(folder) as store:
            about, keys = store.latest()
            try:
                check_about(about)
            except NormkitError as error:
                raise user_error(
                    f"{folder}: its description cannot be used: {error}.",
                    expected="the folder of a comparison",
                    fix="start its command again: what can be read is kept. For studies: normkit study.",
                ) from error
            found, unread = store.read(keys)
        runs = [(run, outcome) for _, run, outcome in found if isinstance(run, Run)]
        if "finished" in about:
            there = {key for key, _, _ in found}
            unread = {**dict.fromkeys((k for k in keys if k not in there), "it is not there"), **unread}
        return cls(about, runs, Path(folder), [f"{key[:12]}: {reason}" for key, reason in unread.items()])

    @cached_property
    def summary(self) -> Summary:
        """Arms from the best to the worst, ties, and the recommendation."""
        if not self.results:
            what = unreadable(self.unread) if self.unread else f"{self.folder} has no finished run yet."
            raise user_error(what, fix="start the same command again.")
        about = self.about
        found = summarise(self.results, list(about["axes"]), about["loss_name"], about["problem"])
        if found is None:
            errors = [o.error for _, o in self.results if o.error]
            raise NormkitError("\n".join(["All runs failed. The first error:", *errors[:1]]))
        return found

    @property
    def recommendation(self) -> str:
        return self.summary.recommendation

    @property
    def warnings(self) -> list[str]:
        """What weakens the answer."""
        lost = [unreadable(self.unread)] if self.unread else []
        if "finished" in self.about:
            return [*lost, *self.summary.warnings]
        done, planned = len(self.results), self.about["runs"]
        count = "runs" if self.about["prune"] else f"{planned - done} of {planned} runs"
        missing = f"Not finished: {count} are missing. The same command goes on."
        return [*lost, missing, *self.summary.warnings]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One flat dictionary a run."""
        return [row(run, outcome) for run, outcome in self.results]

    @property
    def table(self) -> pandas.DataFrame:
        """One row a run."""
        return needs("pandas").DataFrame(self.rows)

    @property
    def arms(self) -> pandas.DataFrame:
        """One row an arm, from the best to the worst, each at its best learning rate."""
        return needs("pandas").DataFrame(
            [
                {
                    **arm.values,
                    "best_lr": arm.best.lr,
                    "loss": arm.best.loss.mean,
                    "half_width": arm.best.loss.half,
                    "tie": arm.label in self.summary.ties,
                    "max_stable_lr": arm.max_stable_lr,
                    "lr_sensitivity": arm.sensitivity,
                    "diverged": sum(p.diverged for p in arm.points),
                    "step_ms": arm.step_ms,
                    f"{self.about['unit']}_per_second": arm.units_per_second,
                    "peak_mb": arm.peak_mb,
                    "parameters": arm.parameters,
                }
                for arm in self.summary.arms
            ]
        )

    @cached_property
    def figures(self) -> dict[str, go.Figure]:
        """plotly's figures: "learning rate", "loss curves", "gradient", "stream", "throughput"."""
        needs("plotly")
        from normkit.lab.figures import figures

        return figures(self)

    def save(self, path: str | Path | None = None) -> Path:
        """Write the page, ``report.html`` in the folder by default."""
        from normkit.lab.page import write

        return write(self, Path(path) if path is not None else self.folder / "report.html")

    def _repr_html_(self) -> str:
        text = self.recommendation.replace("&", "&amp;").replace("<", "&lt;")
        return f"<p><b>{text}</b></p>{self.arms.to_html(index=False, float_format='%.4g')}"

    def __repr__(self) -> str:
        return f"Comparison of {len(self.results)} runs in {self.folder}\n{self.recommendation}"


def unreadable(unread: Sequence[str]) -> str:
    """Of runs that a damaged file has lost."""
    named = "; ".join(unread[:3]) + (f"; and {len(unread) - 3} more" if len(unread) > 3 else "")
    return (
        f"Damaged: {len(unread)} runs cannot be read and are left out ({named}). "
        "Their command does them again."
    )


def needs(name: str) -> Any:
    """An optional package, or the word how to get it."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = "ray" if name == "ray" else "lab"
        known = name in ("pandas", "plotly", "scipy", "sklearn", "ray")
        raise user_error(
            f"This needs {name}, which is not installed.",
            fix=f"pip install 'normkit[{extra}]'" if known else f"pip install {name}",
        ) from error
