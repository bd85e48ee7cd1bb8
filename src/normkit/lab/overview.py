"""A comparison in one table: the arms, each at its best learning rate, and the baselines."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from normkit.lab.intervals import as_loss

if TYPE_CHECKING:
    from normkit.lab.analysis import Summary
    from normkit.lab.arms import Arm
    from normkit.lab.comparison import Comparison

__all__ = ["HEADINGS", "as_html", "as_text", "overview"]

HEADINGS = {"recommendation": "Recommendation", "tie": "A tie", "none": "No answer yet"}
NOTHING = ("", "–")
SMALL = 0.1  # a loss below that needs more than three decimals


def overview(summary: Summary) -> list[list[str]]:
    """Rows of texts, the first one with the titles; columns with nothing in them are left out."""
    rows = [_row(arm, summary) for arm in summary.arms]
    titles = [title for title in rows[0] if any(row[title] not in NOTHING for row in rows)]
    baselines = [
        [f"baseline: {name}", as_loss(loss), *[""] * (len(titles) - 2)]
        for name, loss in summary.baselines.items()
    ]
    failed = [[label, *[""] * (len(titles) - 2), "failed"] for label in summary.failed]
    return [titles, *([row[title] for title in titles] for row in rows), *failed, *baselines]


def _row(arm: Arm, summary: Summary) -> dict[str, str]:
    gap = summary.behind.get(arm.label)
    form = ".3f" if abs(arm.best.loss.mean) >= SMALL else ".1g"
    return {
        "arm": arm.label,
        "loss": arm.loss,
        "behind": ""
        if gap is None or not arm.can_win
        else f"{gap.mean:{form}} {summary.closeness(arm.label)}".rstrip(),
        "best lr": f"{arm.best.lr:.2g}" if arm.learnt else "–",
        "stable to": arm.stable,
        "ended": arm.ending,
    }


def as_text(result: Comparison) -> str:
    """For a prompt."""
    rows = overview(result.summary)
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    sides = (str.ljust, *[str.rjust] * (len(widths) - 1))
    lines = [
        "  ".join(side(*pair) for side, pair in zip(sides, zip(row, widths, strict=True), strict=True))
        for row in rows
    ]
    said = [f"Comparison of {len(result.results)} runs in {result.folder}", "", *lines, "", result.why]
    return "\n".join(said + ([f"To get an answer:  {result.command}"] if result.command else []))


def as_html(result: Comparison) -> str:
    """For a notebook."""
    titles, *rows = overview(result.summary)

    def cells(row: list[str], tag: str) -> str:
        sides = ("left", *["right"] * (len(row) - 1))
        return "".join(
            f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>'
            for cell, side in zip(row, sides, strict=True)
        )

    said = f"{HEADINGS[result.state]}: "
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    command = f"<p>To get an answer: <code>{escape(result.command)}</code></p>" if result.command else ""
    return (
        f"<p><b>{HEADINGS[result.state]}.</b> {escape(result.why.removeprefix(said))}</p>{command}"
        f"<table><thead><tr>{cells(titles, 'th')}</tr></thead><tbody>{body}</tbody></table>"
    )
