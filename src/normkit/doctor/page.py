"""The report as one HTML page, and as a part of a notebook: nothing is fetched.

What comes from the model (paths, names, messages, lines of code) is text, and goes through ``shown``.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from normkit._version import __version__
from normkit.doctor.page_style import PAGE, SCOPED
from normkit.inspect.drawing import draw, shown
from normkit.inspect.inspection import described
from normkit.inspect.outline import Marks
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
    name = shown(type(report.inspection.model).__name__)
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
<p class="note">{shown(about)}</p>
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
    notes = "".join(f"<p>{shown(note)}</p>" for note in report.notes)
    first = str(report.inspection).partition("\n")[0].partition(": ")[2]
    says = "Healthy" if report.ok else "Not healthy"
    return (
        f'<section class="verdict {worst}"><p class="says">{says} {badges}</p>'
        f"<p>{shown(first)}.</p>{notes}</section>"
    )


def _badge(level: str, words: str) -> str:
    return f'<span class="badge {shown(level)}">{shown(words)}</span>'


def _path(words: str) -> str:
    """May be broken behind its dots, slashes and underscores."""
    words = re.sub(r"([./_])(?=.)", r"\1<wbr>", shown(words))
    return f"<code>{words}</code>"


def _finding(group: Sequence[Finding]) -> str:
    """Findings that are alike, as one card."""
    from normkit.doctor.report import code_of, measured_of, where_of

    first = group[0]
    rows = [("measured", shown(measured_of(group))), ("expected", shown(first.expected))]
    safe = ' <span class="safe">report.fix() makes it</span>' if first.is_fixable else ""
    rows.append(("fix", shown(first.fix) + safe))
    if first.line:
        code = code_of(first.line)
        below = f"<pre>{shown(code)}</pre>" if code else ""
        rows.append(("called at", f"{_path(first.line)}{below}"))
    table = "".join(f'<tr><th scope="row">{name}</th><td>{cell}</td></tr>' for name, cell in rows)
    return (
        f'<article class="finding {shown(first.severity)}"><h3>{_badge(first.severity, first.severity)} '
        f"{shown(first.code)} {shown(first.name)}</h3>"
        f'<p class="where">{_path(where_of(group))}</p><p>{shown(first.message)}</p>'
        f"<table>{table}</table>{_all_of(group)}{_about(first.code)}</article>\n"
    )


def _all_of(group: Sequence[Finding]) -> str:
    if len(group) == 1:
        return ""
    items = "".join(f"<li><code>{shown(f.where)}</code>: {f.measured:.4g}</li>" for f in group)
    return f"<details><summary>All {len(group)}</summary><ul>{items}</ul></details>"


def _about(code: str) -> str:
    """The page of the rule, to unfold."""
    from normkit.doctor.rules import RULES

    page = next((rule.page for rule in RULES if rule.code == code), "")
    return (
        f"<details><summary>What {shown(code)} is about</summary><pre>{shown(page)}</pre></details>"
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
    note = f'<p class="note">On the meta device, assumed: {shown(assumed)}.</p>' if assumed else ""
    return f'<div class="model"><figure>{svg}</figure><div>{_table(report, marks)}{note}</div></div>'


def _marked(paths: Sequence[str], marks: Marks) -> str:
    """The codes of what was found there."""
    found = {code: marks[path][0] for path in paths if path in marks for code in marks[path][1].split()}
    return "".join(_badge(severity, code) for code, severity in found.items())


def _table(report: Report, marks: Marks) -> str:
    """Norms that differ only in the number of their layer, in one row."""
    alike: dict[tuple[str, ...], list[Site]] = {}
    for site in report.inspection:
        key = (folded(site.path), described(site.spec), site.place, site.branch or "")
        alike.setdefault(key, []).append(site)
    rows = []
    for (path, what, place, branch), sites in alike.items():
        marked = _marked([site.path for site in sites], marks)
        where = f"{place} · {branch.replace('_', '-')}" if branch else place
        rows.append(
            f'<tr><td class="number">{len(sites)} ×</td><td>{_path(path)} {marked}</td>'
            f'<td>{shown(what)}</td><td title="{shown(PLACES.get(place, ""))}">{shown(where)}</td></tr>'
        )
    unused: dict[str, list[str]] = {}
    for norm in report.inspection.unused:
        unused.setdefault(folded(norm.path), []).append(norm.path)
    for path, paths in unused.items():
        marked = _marked(paths, marks)
        rows.append(
            f'<tr><td class="number">{len(paths)} ×</td><td>{_path(path)} {marked}</td>'
            f"<td>not called</td><td></td></tr>"
        )
    if not rows:
        return "<p>No norm was called.</p>"
    used = dict.fromkeys(site.place for site in report.inspection)
    words = "".join(f"<dt>{shown(p)}</dt><dd>{shown(PLACES.get(p, ''))}</dd>" for p in used)
    legend = f"<details><summary>What the places mean</summary><dl>{words}</dl></details>" if used else ""
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("", "path", "computes", "place"))
    return (
        f'<table class="norms"><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>{legend}'
    )
