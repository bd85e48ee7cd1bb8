"""Held-out losses as figures: by learning rate, or by arm where there is one rate; and what they share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import plotly.graph_objects as go

from normkit.lab.analysis import Summary
from normkit.lab.arms import Arm, Point, Result
from normkit.lab.figure_style import Style, laid_out, short, transparent, wrapped
from normkit.lab.measuring import Outcome

__all__ = [
    *("CLIPPED", "add_baselines", "by_arm", "by_learning_rate", "explain_marks", "matter", "named"),
    *("put_mark", "runs_of"),
]

BANDS = 4  # at most, before anyone asks for all
CLIPPED = "clipped: a run diverged, or was worse than the worst baseline, and is drawn there"
MARK = {"symbol": "x-thin", "size": 14}


def by_learning_rate(
    summary: Summary, results: Sequence[Result], styles: dict[str, Style], title: str
) -> go.Figure:
    """A line an arm, with bands for those that matter; ``title`` is that of the losses."""
    figure = go.Figure()
    with_band, least = matter(summary), lowest(summary)
    worst = max((p.loss.mean for a in summary.arms for p in a.points if _finite(p)), default=1.0)
    others = [arm for arm in summary.arms if arm.label not in with_band and _has_band(arm)]
    for arm in summary.arms:
        if arm not in others and _has_band(arm):
            _band(figure, arm, styles[arm.label], least, legendgroup=arm.label, showlegend=False)
    for arm in summary.arms:
        style, marks = styles[arm.label], clipped_runs(results, arm)
        figure.add_scatter(
            x=[p.lr for p in arm.points],
            y=[drawn_at(arm, p) for p in arm.points],
            name=arm.label if arm.pruned else named(arm),
            legendgroup=arm.label,
            mode="lines+markers",
            line=style.line,
            marker=style.marker,
            customdata=[(str(p.loss), marks[p.lr], len(p.losses)) for p in arm.points],
            hovertemplate="lr %{x:.3g}: %{customdata[0]}<br>%{customdata[1]} of %{customdata[2]} clipped",
        )
        put_mark(
            figure,
            arm,
            [(p.lr, drawn_at(arm, p) or worst) for p in arm.points if marks[p.lr]],
            style,
        )
    for k, arm in enumerate(others):
        group = {"legendgroup": "other intervals", "name": "intervals of the other arms"}
        _band(figure, arm, styles[arm.label], least, **group, showlegend=k == 0, visible="legendonly")
    explain_marks(figure)
    rates = sorted({p.lr for arm in summary.arms for p in arm.points})
    ticks = rates if len(rates) <= 8 else rates[:: math.ceil(len(rates) / 8)]
    laid_out(figure)
    figure.update_xaxes(
        type="log", title="learning rate", tickvals=ticks, ticktext=[short(rate) for rate in ticks]
    )
    figure.update_yaxes(title=title)
    add_baselines(figure, summary)
    return figure


def by_arm(summary: Summary, results: Sequence[Result], styles: dict[str, Style], title: str) -> go.Figure:
    """A row an arm: with one learning rate there is no line to draw. What was pruned is not comparable."""
    figure = go.Figure()
    least = lowest(summary)
    arms = [arm for arm in summary.arms if not arm.pruned] or list(summary.arms)
    worst = max((arm.best.loss.mean for arm in arms if _finite(arm.best)), default=1.0)
    for arm in reversed(arms):
        style, point, label = styles[arm.label], arm.best, wrapped(named(arm), 24)
        low, high = edges(arm, point, least)
        figure.add_scatter(
            x=[drawn_at(arm, point)],
            y=[label],
            name=arm.label,
            legendgroup=arm.label,
            mode="markers",
            marker=style.marker,
            error_x={
                **{"type": "data", "array": [high - (drawn_at(arm, point) or 0.0)], "thickness": 1.5},
                **{"arrayminus": [(drawn_at(arm, point) or 0.0) - low], "color": style.color},
            }
            if _finite(point)
            else None,
            showlegend=False,
            hovertemplate=f"{point.loss}<extra></extra>",
        )
        if clipped_runs(results, arm)[point.lr]:
            put_mark(figure, arm, [(drawn_at(arm, point) or worst, label)], style)
    explain_marks(figure)
    for k, (name, loss) in enumerate(summary.baselines.items()):
        figure.add_vline(loss, line={"dash": "dot", "width": 1, "color": "gray"})
        figure.add_annotation(
            **{"x": loss, "xanchor": "right", "yref": "paper", "y": 1, "yanchor": "bottom", "yshift": 13 * k},
            **{"text": name, "showarrow": False, "font": {"color": "gray", "size": 11}},
        )
    lines = max(wrapped(named(arm), 24).count("<br>") for arm in arms) + 1
    laid_out(figure, height=150 + (14 + 14 * lines) * max(3, len(arms)))
    figure.update_layout(margin={"t": 20 + 14 * len(summary.baselines)})
    figure.update_xaxes(title=wrapped(title, 28))
    figure.update_yaxes(type="category")
    return figure


def named(arm: Arm) -> str:
    """For a legend: how it ended is said where it did not end well."""
    return arm.label if arm.ending == "ok" else f"{arm.label} ({arm.ending})"


def matter(summary: Summary) -> tuple[str, ...]:
    """The best arm of each problem, and the first of those that tie with it or whose interval meets its."""
    best = {arm.problem: arm for arm in reversed(summary.arms)}
    close = [
        arm.label
        for arm in summary.arms
        if arm is not best[arm.problem] and (arm.label in summary.ties or _meet(arm, best[arm.problem]))
    ]
    firsts = [arm.label for arm in summary.arms if arm is best[arm.problem]]
    return tuple([*firsts, *close][:BANDS])


def lowest(summary: Summary) -> float:
    """What no loss can be below, as far as the data say: 0 if none is."""
    seen = [loss for arm in summary.arms for p in arm.points for loss in p.losses.values()]
    return 0.0 if min([*seen, *summary.baselines.values()]) >= 0 else -math.inf


def drawn_at(arm: Arm, point: Point) -> float | None:
    """The loss, or the worst baseline where it is beyond: one that explodes must not flatten all others."""
    if not _finite(point):
        return None
    return point.loss.mean if arm.plateau is None else min(point.loss.mean, arm.plateau)


def edges(arm: Arm, point: Point, least: float) -> tuple[float, float]:
    """Of an interval, inside of what is drawn."""
    half, middle = point.loss.half or 0.0, drawn_at(arm, point) or 0.0
    most = arm.plateau if arm.plateau is not None else math.inf
    return max(least, middle - half), min(most, middle + half)


def clipped_runs(results: Sequence[Result], arm: Arm) -> Counter[float]:
    """How many runs do not count with the loss that they had, by learning rate."""
    runs = sorted(runs_of(arm, results), key=lambda result: result[0].last)
    latest = {(run.lr, run.seed): o for run, o in runs}
    return Counter(lr for (lr, _), o in latest.items() if _beyond(o))


def _beyond(outcome: Outcome) -> bool:
    loss, worst = outcome.final_loss, outcome.plateau
    return outcome.diverged or loss is None or (worst is not None and loss > worst)


def runs_of(arm: Arm, results: Sequence[Result]) -> list[Result]:
    """Those that did not fail."""
    return [
        (run, o)
        for run, o in results
        if o.error is None and all(run.value(name) == value for name, value in arm.values.items())
    ]


def explain_marks(figure: go.Figure, meaning: str = CLIPPED) -> None:
    """A line in the legend, if there is a mark."""
    if any(trace.meta == "clipped" for trace in figure.data):
        figure.add_scatter(
            **{"x": [None], "y": [None], "mode": "markers", "name": meaning, "meta": "note"},
            marker={**MARK, "line": {"width": 2, "color": "gray"}},
            showlegend=True,
        )


def add_baselines(figure: go.Figure, summary: Summary) -> None:
    """Dotted lines, with their names beside the plot and apart from each other."""
    losses = [y for trace in figure.data for y in trace.y if y is not None] + list(summary.baselines.values())
    height = figure.layout.height - 66  # without the margins
    scale = height / ((max(losses) - min(losses)) * 1.1 or 1.0)
    edge = -math.inf  # of the name below, in pixels
    for name, loss in sorted(summary.baselines.items(), key=lambda pair: pair[1]):
        text = wrapped(name, 12)
        space = 14 * (text.count("<br>") + 1)
        middle = max(loss * scale, edge + space / 2)
        edge = middle + space / 2
        figure.add_hline(y=loss, line={"dash": "dot", "width": 1, "color": "gray"})
        figure.add_annotation(
            **{"xref": "paper", "x": 1, "xanchor": "left", "y": loss, "yshift": middle - loss * scale},
            **{"text": text, "showarrow": False, "align": "left", "font": {"color": "gray", "size": 11}},
        )
    longest = max(
        (len(line) for name in summary.baselines for line in wrapped(name, 12).split("<br>")), default=0
    )
    figure.update_layout(margin={"r": 16 + 6 * longest})


def _band(figure: go.Figure, arm: Arm, style: Style, least: float, **more: object) -> None:
    points = [p for p in arm.points if _finite(p)]
    x = [p.lr for p in points]
    bounds = [edges(arm, p, least) for p in points]
    figure.add_scatter(
        x=x + x[::-1],
        y=[high for _, high in bounds] + [low for low, _ in reversed(bounds)],
        fill="toself",
        fillcolor=transparent(style.color),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        meta="band",
        **more,
    )


def put_mark(figure: go.Figure, arm: Arm, where: Sequence[tuple[float, float | str]], style: Style) -> None:
    """Crosses over points that are not where they would be."""
    if where:
        figure.add_scatter(
            **{"x": [x for x, _ in where], "y": [y for _, y in where], "mode": "markers", "meta": "clipped"},
            **{"legendgroup": arm.label, "showlegend": False, "hoverinfo": "skip"},
            marker={**MARK, "line": {"width": 2, "color": style.color}},
        )


def _has_band(arm: Arm) -> bool:
    return sum(_finite(p) for p in arm.points) > 1 and any(p.loss.half for p in arm.points)


def _meet(arm: Arm, best: Arm) -> bool:
    ours, theirs = best.best.loss, arm.best.loss
    return theirs.mean - (theirs.half or 0.0) <= ours.mean + (ours.half or 0.0)


def _finite(point: Point) -> bool:
    return math.isfinite(point.loss.mean)
