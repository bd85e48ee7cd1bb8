"""What the page of a comparison says, as data for its template."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from normkit.lab.arms import LEAKS
from normkit.lab.figures import SENTENCES, one_rate
from normkit.lab.measuring import ENDINGS
from normkit.lab.overview import HEADINGS
from normkit.lab.page.tables import arms_table, costs_table, runs_table

if TYPE_CHECKING:
    from normkit.lab.comparison import Comparison

__all__ = ["content"]

SCOPE = (
    "Scope: {runs} runs of up to {steps:,} steps with models of {weights:,} weights. Runs this small show "
    "how fast and how safely training starts. They do not show final quality, and no ranking carries over to "
    "models that are a thousand times larger."
)


def content(comparison: Comparison) -> dict[str, Any]:
    """Everything but the figures."""
    about, summary = comparison.about, comparison.summary
    weights = sorted(arm.parameters for arm in summary.arms)
    return {
        "title": f"normkit: {about['title']}",
        "question": _question(about),
        "heading": HEADINGS[comparison.state],
        "answer": _answer(comparison),
        "state": comparison.state,
        "retry": comparison.command,
        "warnings": comparison.warnings,
        "scope": SCOPE.format(
            runs=len(comparison.results),
            steps=max(run.last for run, _ in comparison.results),
            weights=weights[len(weights) // 2],
        ),
        "pruned": _pruned(comparison),
        "sentences": SENTENCES,
        "one_rate": one_rate(summary.arms),
        "arms": arms_table(summary),
        "endings": _endings(comparison),
        "costs": costs_table(summary, about["unit"]),
        "runs": runs_table(comparison),
        "errors": _errors(comparison),
        "command": about["command"],
        "facts": _facts(comparison),
    }


def _answer(comparison: Comparison) -> str:
    """Without what the heading says already; a name of an arm keeps its case."""
    text = comparison.why.removeprefix(f"{HEADINGS[comparison.state]}: ")
    named = any(text.startswith(arm.label) for arm in comparison.summary.arms)
    return text if named else text[:1].upper() + text[1:]


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
        f"{comparison.about['full_steps']:,}. Arms that ended as “stopped” were dropped after a short run "
        "with one seed. Largest stable learning rate and sensitivity need all rates, so they are not known."
    )


def _endings(comparison: Comparison) -> dict[str, str]:
    """What the words on this page mean, those that are used."""
    used = {arm.ending for arm in comparison.summary.arms} | {o.status for _, o in comparison.results}
    return {word: meaning for word, meaning in {**ENDINGS, "leaks": LEAKS}.items() if word in used}


def _errors(comparison: Comparison) -> list[dict[str, Any]]:
    """Each once, with the runs that ended so."""
    runs: dict[str, list[str]] = defaultdict(list)
    for run, outcome in comparison.results:
        if outcome.error:
            runs[outcome.error.strip()].append(str(run))
    return [
        {"text": text, "last": text.splitlines()[-1], "count": len(members), "runs": "; ".join(members)}
        for text, members in runs.items()
    ]


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    about = comparison.about
    common = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in about["common"].items() if k != "task")
    facts = [
        ("data", "; ".join(about["source"])),
        ("data, SHA-256", ", ".join(about["data"])),
        ("the same in all runs", common),
        ("optimizer", "AdamW, betas 0.9 and 0.95, no weight decay, no clipping"),
        (
            "judged by",
            "the loss after the last step on held-out data, clipped at the worst baseline; other "
            "data chose the learning rates",
        ),
        (
            "intervals",
            "95 %, Student's, over seeds, with the sampling error of the held-out data; arms are "
            "compared seed by seed",
        ),
        ("code", about["code"]),
        ("engine", f"{about['engine']}, {about['workers']} workers, one torch thread each"),
        ("started", about["started"]),
    ]
    if "seconds" in about:
        facts.append(("took", f"{about['seconds']:.0f} seconds"))
    return facts + [(name, str(value)) for name, value in about["machine"].items() if name != "normkit"]
