"""The result of a comparison, in a notebook as on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normkit.errors import NormkitError, user_error
from normkit.lab import budget
from normkit.lab.advice import changed
from normkit.lab.analysis import Summary, row, summarise
from normkit.lab.arms import Arm
from normkit.lab.extras import needs
from normkit.lab.measuring import Outcome
from normkit.lab.overview import as_html, as_text
from normkit.lab.progress import written
from normkit.lab.run import Run
from normkit.lab.store import Store
from normkit.lab.stored import check_about

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go

__all__ = ["Comparison", "unreadable"]

ENOUGH_SEEDS = 3  # from which on a difference can be judged
COPIED = 0.05  # of the held-out rows: a few may be the same by chance


class Comparison:
    """Runs, and what they say.

    ``state`` is "recommendation", "tie" or "none"; ``winner`` the arm that beats all others, or None;
    ``choice`` the one to take, of a tie the simplest and cheapest; ``why`` the sentence with the numbers;
    ``command`` what would get an answer where there is none. ``arms`` is a table of the arms, ``table`` one
    of the runs, ``figures`` has plotly's figures by name, ``save`` writes the page.
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
        found = self.summary_of(self.results)
        if found is None:
            errors = [o.error for _, o in self.results if o.error]  # and none that ended
            raise NormkitError("\n".join(["All runs failed. The first error:", *errors[:1]]))
        return found

    def summary_of(self, results: Sequence[tuple[Run, Outcome]]) -> Summary | None:
        """What some of the runs say; None where none has ended."""
        about = self.about
        return summarise(results, list(about["axes"]), about["loss_name"], about["problem"])

    @property
    def state(self) -> str:
        """ "recommendation", "tie" or "none"."""
        return "none" if self._stopped else self.summary.state

    @property
    def winner(self) -> Arm | None:
        """The arm that beats all others, if there is one, of one problem."""
        answers = self.summary.answers
        return answers[0].winner if self.state == "recommendation" and len(answers) == 1 else None

    @property
    def choice(self) -> Arm | None:
        """The arm to take: the winner, or the simplest and cheapest of a tie."""
        answers = self.summary.answers
        return answers[0].choice if self.state != "none" and len(answers) == 1 else None

    @property
    def why(self) -> str:
        """The answer in words, or why there is none."""
        if self._stopped:
            return f"No answer yet: {self._missing} are missing. The same command goes on. {self.summary.why}"
        return self.summary.why

    @property
    def command(self) -> str | None:
        """What would get an answer, where there is none."""
        changes = [a.change for a in self.summary.answers if a.state == "none" and a.change]
        if self._stopped:
            return str(self.about["command"])
        if not changes:
            return None
        one = len({run.seed for run, _ in self.results}) == 1
        enough = {"seeds": ENOUGH_SEEDS} if one and "seeds" not in changes[0] else {}
        return changed(self.about["command"], {**self._affordable(changes[0]), **enough})

    def _seeds(self, change: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those that were asked for, if they were named, and more, so that what is done is kept."""
        seeds = sorted({run.seed for run, _ in self.results})
        if "seeds" not in change or seeds == [*range(len(seeds))]:
            return change
        more = range(seeds[-1] + 1, seeds[-1] + 1 + change["seeds"] - len(seeds))
        return {**change, "seeds": ",".join(map(str, [*seeds, *more]))}

    def _affordable(self, change: Mapping[str, Any]) -> Mapping[str, Any]:
        """The same as a longer budget, where that is what was asked for."""
        if self.about["budget"] is None or not {"lr", "steps", "seeds"} & set(change):
            return self._seeds(change)
        longest = max((run for run, _ in self.results), key=lambda run: run.steps)
        seeds = len({run.seed for run, _ in self.results})
        if (
            "lr" in change  # the same steps, so that what is done is kept
            or change.get("steps", 0) > budget.most_steps(self.about["task"])
            or change.get("seeds", 0) > seeds + budget.MORE_SEEDS
        ):
            return self._seeds({"budget": None, "steps": longest.steps, "prune": True, **change})
        factor = change["steps"] / longest.steps if "steps" in change else change["seeds"] / seeds
        return {"budget": written(self.about["budget"] * max(1.2, factor))}

    @property
    def _stopped(self) -> bool:
        return "finished" not in self.about

    @property
    def _missing(self) -> str:
        done, planned = len(self.results), self.about["runs"]
        return "runs" if self.about["prune"] else f"{planned - done} of {planned} runs"

    @property
    def warnings(self) -> list[str]:
        """What weakens the answer."""
        lost = [unreadable(self.unread)] if self.unread else []
        if self.about.get("copied", 0.0) > COPIED:
            lost.append(
                f"{self.about['copied']:.0%} of the held-out rows are among a few training batches, too: a "
                "low loss may be memory."
            )
        steps = f" --steps {self.about['planned']['steps']} --prune" if self.about["budget"] else ""
        return [*lost, *(w + steps if " --lr " in w else w for w in self.summary.warnings)]

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
                    "arm": arm.label,
                    **arm.values,
                    "best_lr": arm.best.lr,
                    "ending": arm.ending,
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
            + [{"arm": label, "ending": "failed"} for label in self.summary.failed]
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
        return as_html(self)

    def __repr__(self) -> str:
        return as_text(self)


def unreadable(unread: Sequence[str]) -> str:
    """Of runs that a damaged file has lost."""
    named = "; ".join(unread[:3]) + (f"; and {len(unread) - 3} more" if len(unread) > 3 else "")
    return (
        f"Damaged: {len(unread)} runs cannot be read and are left out ({named}). "
        "Their command does them again."
    )
