"""What the page of a comparison says, as data for its template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normkit.lab.analysis import Arm, Summary
from normkit.lab.figures import SENTENCES

if TYPE_CHECKING:
    from normkit.lab.comparison import Comparison

__all__ = ["content"]

SCOPE = (
    "Scope: {runs} runs of up to {steps:,} steps with models of {weights:,} weights. Runs this small show "
    "how fast and how safely training starts. They do not show final quality, and no ranking carries over to "
    "models that are a thousand times larger. The learning rate of each arm was chosen by the same seeds "
    "that judge it."
)


def content(comparison: Comparison) -> dict[str, Any]:
    """Everything but the figures."""
    about, summary = comparison.about, comparison.summary
    weights = sorted(arm.parameters for arm in summary.arms)
    return {
        "title": f"normkit: {about['title']}",
        "question": _question(about),
        "recommendation": summary.recommendation,
        "warnings": comparison.warnings,
        "scope": SCOPE.format(
            runs=len(comparison.results),
            steps=max(run.last for run, _ in comparison.results),
            weights=weights[len(weights) // 2],
        ),
        "pruned": _pruned(comparison),
        "sentences": SENTENCES,
        "arms": _arms(summary),
        "costs": _costs(summary, about["unit"]),
        "runs": _runs(comparison),
        "command": about["command"],
        "facts": _facts(comparison),
    }


def _question(about: dict[str, Any]) -> str:
    axes = [f"{len(values)} {_plural(name, len(values))}" for name, values in about["axes"].items()]
    data, compared = "; ".join(about["source"]), ", ".join(axes) or "one arm"
    return f"{about['title'].capitalize()}, on {data}. Compared: {compared}."


def _plural(name: str, count: int) -> str:
    words = {"lr": "learning rate", "batch_size": "batch size", "warmup": "warm-up", "norm": "norm"}
    word = words.get(name, name.replace("_", " "))
    return word if count == 1 else word + "s"


def _pruned(comparison: Comparison) -> str | None:
    rungs = comparison.about["prune"]
    if not rungs:
        return None
    spent = sum(outcome.steps for _, outcome in comparison.results)
    shares = ", ".join(f"{share:.0%}" for share in rungs)
    return (
        f"Pruned by successive halving at {shares} of the steps: {spent:,} steps instead of "
        f"{comparison.about['full_steps']:,}. Arms marked as pruned were dropped after a short run with one "
        "seed. Largest stable learning rate and sensitivity need all learning rates, so they are not known."
    )


def _cell(text: str, sort: float | str | None = None, *, numeric: bool = False) -> dict[str, Any]:
    return {"text": text, "sort": sort, "numeric": numeric}


def _number(value: float | None, form: str = ".3g", missing: str = "–") -> dict[str, Any]:
    if value is None:
        return _cell(missing, "", numeric=True)
    return _cell(format(value, form), value, numeric=True)


def _columns(*titles: str, numeric: int) -> list[dict[str, Any]]:
    """The last ``numeric`` ones are numbers."""
    return [{"title": t, "numeric": k >= len(titles) - numeric} for k, t in enumerate(titles)]


def _arms(summary: Summary) -> dict[str, Any]:
    columns = _columns(
        *("Arm", "Loss", "Behind", "Learning rate", "Largest stable", "Sensitivity", "Diverged"), numeric=6
    )
    rows = []
    for arm in summary.arms:
        diverged, runs = sum(p.diverged for p in arm.points), sum(len(p.losses) for p in arm.points)
        rows.append(
            [
                _cell(arm.label + (" (pruned)" if arm.pruned else "")),
                _cell(arm.loss, arm.best.loss.mean if arm.learnt and not arm.pruned else "", numeric=True),
                _behind(arm, summary),
                _number(arm.best.lr),
                _cell(arm.stable, arm.max_stable_lr or "", numeric=True),
                _number(arm.sensitivity, ".3f"),
                _cell(f"{diverged} of {runs}", diverged, numeric=True),
            ]
        )
    return {"columns": columns, "rows": rows}


def _costs(summary: Summary, unit: str) -> dict[str, Any]:
    columns = _columns("Arm", "ms a step", f"{unit} a second", "Peak MB", "Weights", numeric=4)
    rows = [
        [
            _cell(arm.label),
            _number(arm.step_ms, ".1f"),
            _number(arm.units_per_second, ",.0f"),
            _number(arm.peak_mb, ".0f"),
            _number(arm.parameters, ",d"),
        ]
        for arm in summary.arms
    ]
    return {"columns": columns, "rows": rows}


def _behind(arm: Arm, summary: Summary) -> dict[str, Any]:
    gap = summary.behind.get(arm.label)
    if gap is None:
        return _number(None) if arm.pruned else _cell("best", 0.0, numeric=True)
    if not arm.learnt:
        return _number(None)
    return _cell(f"{gap}{', a tie' if arm.label in summary.ties else ''}", gap.mean, numeric=True)


_HIDDEN = ("task", "plateau", "error_text", "data", "schedule", "steps")
_NAMES = {"lr": "learning rate", "units_per_second": "a second", "peak_mb": "peak MB", "step_ms": "ms a step"}


def _runs(comparison: Comparison) -> dict[str, Any]:
    """All columns in which runs differ, and what came out."""
    rows = comparison.rows
    names = list(dict.fromkeys(name for row in rows for name in row))
    fixed = {"depth", "width", "batch_size", "warmup"}
    shown = [
        n for n in names if n not in _HIDDEN and not (n in fixed and len({row.get(n) for row in rows}) == 1)
    ]
    if any(row["error_text"] for row in rows):
        shown.append("error_text")
    numeric = {n: all(isinstance(row.get(n), int | float | None) for row in rows) for n in shown}
    columns = [{"title": _NAMES.get(n, n.replace("_", " ")), "numeric": numeric[n]} for n in shown]
    return {"columns": columns, "rows": [[_value(n, row.get(n), numeric[n]) for n in shown] for row in rows]}


def _value(name: str, value: Any, numeric: bool) -> dict[str, Any]:
    if value is None:
        return _cell("–", "", numeric=numeric)
    if isinstance(value, bool):
        return _cell("yes" if value else "no")
    if name == "error_text":
        return _cell(str(value).strip().splitlines()[-1])
    if isinstance(value, float):
        form = {"units_per_second": ",.0f", "lr": ".3g", "peak_mb": ".0f", "seconds": ".1f", "step_ms": ".1f"}
        return _cell(format(value, form.get(name, ".4f")), value, numeric=True)
    if isinstance(value, int):
        return _cell(f"{value:,}", value, numeric=True)
    return _cell(str(value))


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    about = comparison.about
    common = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in about["common"].items() if k != "task")
    facts = [
        ("data", "; ".join(about["source"])),
        ("data, SHA-256", ", ".join(about["data"])),
        ("the same in all runs", common),
        ("optimizer", "AdamW, betas 0.9 and 0.95, no weight decay, no clipping"),
        ("judged by", "the loss on held-out data after the last step, clipped at that of a blind guess"),
        ("intervals", "95 %, Student's, over seeds; arms are compared seed by seed"),
        ("code", about["code"]),
        ("engine", f"{about['engine']}, {about['workers']} workers, one torch thread each"),
        ("started", about["started"]),
    ]
    if "seconds" in about:
        facts.append(("took", f"{about['seconds']:.0f} seconds"))
    return facts + [(name, str(value)) for name, value in about["machine"].items() if name != "normkit"]
