"""The report as one HTML page, and as a part of a notebook: nothing is fetched.

What comes from the model (paths, names, messages, lines of code) is text, and goes through ``escape``.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import torch

from normkit._version import __version__
from normkit.doctor.page_style import PAGE, SCOPED
from normkit.inspect.drawing import draw
from normkit.inspect.inspection import described
from normkit.inspect.sites import PLACES, Site, folded

if TYPE_CHECKING:
    from normkit.doctor.report import Finding, Report

__all__ = ["body", "render", "style"]

SWITCH = """"use strict";
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement.dataset;
  const dark = root.theme ? root.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.theme = dark ? "light" : "dark";
});"""


def render(report: Report) -> str:
    """The whole page."""
    name = escape(type(report.inspection.model).__name__)
    about = f"normkit {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>normkit doctor: {name}</title>
<style>{PAGE}{style("main")}</style>
</head>
<body>
<header>
<span class="brand">normkit doctor</span>
<button id="theme" type="button" aria-label="Switch between light and dark">◐</button>
</header>
<main>
<h1>{name}</h1>
{body(report)}
<p class="note">{escape(about)}</p>
</main>
<script>{SWITCH}</script>
</body>
</html>
"""


def style(scope: str) -> str:
    """Rules for what is inside of ``scope`` alone, in the colours of what is around it."""
    return SCOPED.replace("§", scope)


def body(report: Report) -> str:
    """The verdict, the findings from the worst on, the model."""
    from normkit.doctor.report import grouped

    groups = [_finding(group) for group in grouped(report.findings)]
    findings = f"<h2>Findings</h2>\n{''.join(groups)}" if groups else ""
    return f"{_verdict(report)}\n{findings}\n<h2>The norms</h2>\n{_model(report)}"


def _verdict(report: Report) -> str:
    from normkit.doctor.report import LEVELS

    counts = [(report.count(level), level) for level in LEVELS]
    badges = "".join(
        _badge(level, f"{n} {level if n == 1 or level == 'info' else level + 's'}")
        for n, level in counts
        if n
    )
    worst = next((level for n, level in counts if n and level != "info"), "good")
    notes = "".join(f"<p>{escape(note)}</p>" for note in report.notes)
    first = str(report.inspection).partition("\n")[0]
    says = "Healthy" if report.ok else "Not healthy"
    return (
        f'<section class="verdict {worst}"><p class="says">{says} {badges}</p>'
        f"<p>{escape(first)}.</p>{notes}</section>"
    )


def _badge(level: str, words: str) -> str:
    return f'<span class="badge {escape(level)}">{escape(words)}</span>'


def _finding(group: Sequence[Finding]) -> str:
    """Findings that are alike, as one card."""
    from normkit.doctor.report import code_of, measured_of, where_of

    first = group[0]
    rows = [("measured", escape(measured_of(group))), ("expected", escape(first.expected))]
    safe = ' <span class="safe">report.fix() makes it</span>' if first.is_fixable else ""
    rows.append(("fix", escape(first.fix) + safe))
    if first.line:
        code = code_of(first.line)
        below = f"<pre>{escape(code)}</pre>" if code else ""
        rows.append(("called at", f"<code>{escape(first.line)}</code>{below}"))
    table = "".join(f'<tr><th scope="row">{name}</th><td>{cell}</td></tr>' for name, cell in rows)
    return (
        f'<article class="finding {escape(first.severity)}"><h3>{_badge(first.severity, first.severity)} '
        f"{escape(first.code)} {escape(first.name)}</h3>"
        f'<p class="where"><code>{escape(where_of(group))}</code></p><p>{escape(first.message)}</p>'
        f"<table>{table}</table>{_all_of(group)}{_about(first.code)}</article>\n"
    )


def _all_of(group: Sequence[Finding]) -> str:
    if len(group) == 1:
        return ""
    items = "".join(f"<li><code>{escape(f.where)}</code>: {f.measured:.4g}</li>" for f in group)
    return f"<details><summary>All {len(group)}</summary><ul>{items}</ul></details>"


def _about(code: str) -> str:
    """The page of the rule, to unfold."""
    from normkit.doctor.rules import RULES

    page = next((rule.page for rule in RULES if rule.code == code), "")
    return (
        f"<details><summary>What {escape(code)} is about</summary><pre>{escape(page)}</pre></details>"
        if page
        else ""
    )


def _model(report: Report) -> str:
    """The drawing beside the table."""
    found = report.inspection
    marks: dict[str, tuple[str, str]] = {}
    for finding in report.findings:  # worst first
        severity, codes = marks.get(finding.where, (finding.severity, ""))
        if finding.severity != "info" and finding.code not in codes:
            marks[finding.where] = (severity, f"{codes} {finding.code}".strip())
    svg = draw(found.sites, found.residuals, found.graph, marks)
    assumed = "; ".join(dict.fromkeys(found.trace.assumed))
    note = f'<p class="note">On the meta device, assumed: {escape(assumed)}.</p>' if assumed else ""
    return f'<div class="model"><figure>{svg}</figure><div>{_table(report, marks)}{note}</div></div>'


def _table(report: Report, marks: dict[str, tuple[str, str]]) -> str:
    """Norms that differ only in the number of their layer, in one row."""
    alike: dict[tuple[str, ...], list[Site]] = {}
    for site in report.inspection:
        key = (folded(site.path), described(site.spec), site.place, site.branch or "")
        alike.setdefault(key, []).append(site)
    rows = []
    for (path, what, place, branch), sites in alike.items():
        codes = sorted({code for s in sites for code in marks.get(s.path, ("", ""))[1].split()})
        severity = next((marks[s.path][0] for s in sites if s.path in marks), "")
        marked = "".join(_badge(severity, code) for code in codes)
        where = f"{place} · {branch.replace('_', '-')}" if branch else place
        rows.append(
            f'<tr><td class="number">{len(sites)} ×</td><td><code>{escape(path)}</code> {marked}</td>'
            f'<td>{escape(what)}</td><td title="{escape(PLACES.get(place, ""))}">{escape(where)}</td></tr>'
        )
    for path in dict.fromkeys(folded(unused.path) for unused in report.inspection.unused):
        rows.append(
            f'<tr class="unused"><td class="number">–</td><td><code>{escape(path)}</code></td>'
            f"<td>not called</td><td></td></tr>"
        )
    if not rows:
        return "<p>No norm was called.</p>"
    used = dict.fromkeys(site.place for site in report.inspection)
    words = "".join(f"<dt>{escape(p)}</dt><dd>{escape(PLACES.get(p, ''))}</dd>" for p in used)
    legend = f"<details><summary>What the places mean</summary><dl>{words}</dl></details>" if used else ""
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("", "path", "computes", "place"))
    return (
        f'<table class="norms"><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>{legend}'
    )
