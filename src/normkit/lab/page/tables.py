"""The tables of a comparison's page: arms, costs and runs. A column that says nothing is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normkit.lab.analysis import Arm, Summary
from normkit.lab.figures import one_rate
from normkit.lab.intervals import as_loss

if TYPE_CHECKING:
    from normkit.lab.comparison import Comparison

__all__ = ["arms_table", "costs_table", "runs_table"]

Cell = dict[str, Any]
NOTES = {
    "Behind": "Behind: how much it loses to the first, over the same seeds; what the seeds do not separate "
    "from the first is close, or a tie where all such differ by little.",
    "Largest stable": "Largest stable: the largest learning rate that gets at least half-way from the worst "
    "baseline to the arm’s own best loss.",
    "Sensitivity": "Sensitivity: how far the arm is from the best loss of all arms, on average over the "
    "learning rates; a run that diverged counts as the worst baseline.",
    "Peak MB": "Peak MB: the most memory that a run took above what its process had before it; a median, "
    "like the rest.",
}
# Of a run: what other tables have by arm, or what is only for the exports.
HIDDEN = (
    *("task", "plateau", "error_text", "data", "schedule", "steps", "best_loss"),
    *("units_per_second", "peak_mb", "parameters", "seconds"),
)
ALWAYS = ("norm", "placement", "lr", "seed", "status", "final_loss")
TITLES = {"lr": "learning rate", "step_ms": "ms a step", "status": "ended"}
FORMATS = {"lr": ".3g", "step_ms": ".1f"}
OF_RATES = ("Learning rate", "Largest stable", "Sensitivity")  # say nothing of a single one


def arms_table(summary: Summary) -> dict[str, Any]:
    """From the best to the worst, then the baselines."""
    titles = ("Arm", "Loss", "Behind", "Learning rate", "Largest stable", "Sensitivity", "Ended")
    rows = [
        [
            _cell(arm.label),
            _cell(arm.loss, arm.best.loss.mean if arm.learnt and not arm.pruned else "", numeric=True),
            _behind(arm, summary),
            _number(arm.best.lr),
            _cell(arm.stable, arm.max_stable_lr or "", numeric=True),
            _number(arm.sensitivity, ".3f"),
            _cell(arm.ending),
        ]
        for arm in summary.arms
    ]
    empty = _number(None, missing="")
    rows += [[_cell(label), *[empty] * (len(titles) - 2), _cell("failed")] for label in summary.failed]
    for name, loss in summary.baselines.items():
        rows.append(
            [
                _cell(f"baseline: {name}"),
                _cell(as_loss(loss), loss, numeric=True),
                *[empty] * (len(titles) - 2),
            ]
        )
    return _table(titles, rows, leave_out=OF_RATES if one_rate(summary.arms) else ())


def costs_table(summary: Summary, unit: str) -> dict[str, Any]:
    titles = ("Arm", "ms a step", f"{unit} a second", "Peak MB", "Weights")
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
    return _table(titles, rows)


def runs_table(comparison: Comparison) -> dict[str, Any]:
    """What differs between runs; what does not is said once, below."""
    found = comparison.rows
    names = [
        name
        for name in dict.fromkeys(name for row in found for name in row)
        if name not in HIDDEN and not name.startswith("baseline_")
    ]
    values = {name: [row.get(name) for row in found] for name in names}
    same = {n: v[0] for n, v in values.items() if n not in ALWAYS and all(x == v[0] for x in v)}
    shown = [name for name in names if name not in same]
    rows = [[_value(name, row.get(name)) for name in shown] for row in found]
    table = _table([_title(name) for name in shown], rows)
    config = comparison.about["common"]
    said = [
        f"{_title(n)} {_value(n, v)['text']}" for n, v in same.items() if v is not None and n not in config
    ]
    if said:
        table["notes"].append(f"The same in all runs: {', '.join(said)}.")
    return table


def _table(titles: Sequence[str], rows: list[list[Cell]], leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """Without the columns in which no row has a value."""
    filled = [
        k
        for k, title in enumerate(titles)
        if title not in leave_out and any(row[k]["text"] not in ("", "–") for row in rows)
    ]
    columns = [{"title": titles[k], "numeric": any(row[k]["numeric"] for row in rows)} for k in filled]
    return {
        "columns": columns,
        "rows": [[row[k] for k in filled] for row in rows],
        "notes": [NOTES[titles[k]] for k in filled if titles[k] in NOTES],
    }


def _cell(text: str, sort: float | str | None = None, *, numeric: bool = False) -> Cell:
    return {"text": text, "sort": sort, "numeric": numeric}


def _number(value: float | None, form: str = ".3g", missing: str = "–") -> Cell:
    if value is None:
        return _cell(missing, "", numeric=True)
    return _cell(format(value, form), value, numeric=True)


def _behind(arm: Arm, summary: Summary) -> Cell:
    gap = summary.behind.get(arm.label)
    if gap is None:
        best = arm.can_win and summary.behind and arm is summary.arms[0]
        return _cell("best", 0.0, numeric=True) if best else _number(None)
    return _cell(", ".join(filter(None, (str(gap), summary.closeness(arm.label)))), gap.mean, numeric=True)


def _title(name: str) -> str:
    return TITLES.get(name, name.replace("_", " "))


def _value(name: str, value: Any) -> Cell:
    if value is None:
        return _cell("–", "")
    if isinstance(value, bool):
        return _cell("yes" if value else "no")
    if isinstance(value, float):
        return _number(value, FORMATS.get(name, ".4f"))
    if isinstance(value, int):
        return _number(value, ",d")
    return _cell(str(value))
