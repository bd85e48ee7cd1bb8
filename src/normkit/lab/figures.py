"""The figures of a comparison, as plotly's: objects in a notebook, drawings on the page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normkit.lab.analysis import Arm
from normkit.lab.measuring import Outcome
from normkit.lab.run import Run

if TYPE_CHECKING:
    from normkit.lab.comparison import Comparison

__all__ = ["COLOURS", "DASHES", "MARKERS", "SENTENCES", "figures", "laid_out"]

# Okabe and Ito's, without the yellow and the black, which one of the two themes would hide. Colour says
# where, line and marker say which norm.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F", "#8C6BB1")
DASHES = ("solid", "dot", "dash", "dashdot", "longdash")
MARKERS = ("circle", "diamond", "square", "cross", "triangle-up", "x")
GRID = "rgba(128,128,128,0.25)"

SENTENCES = {
    "learning rate": "Each line is an arm, the band its 95 % interval over seeds. Low is good; wide and flat "
    "is forgiving. The dotted line is a blind guess, which ignores the input.",
    "loss curves": "Training loss at each arm's best learning rate, mean over seeds. A curve that lies on "
    "the dotted line has learnt nothing yet.",
    "gradient": "The norm of the gradient of each layer, at each arm's best learning rate. An even row is "
    "healthy; a row that fades from left to right, or from right to left, has layers that learn late.",
    "stream": "The root mean square of the residual stream behind each layer. A row that grows to the right, "
    "as with Pre-LN, means that late layers change the stream by less and less.",
    "throughput": "How much each arm gets through in a second, one thread a run: the median of its runs, "
    "with the middle half as a whisker. Bars whose whiskers overlap are no different.",
}


def figures(comparison: Comparison) -> dict[str, go.Figure]:
    """By name; those without anything to show are left out."""
    arms = comparison.summary.arms
    styles = _styles(arms)
    drawn = {
        "learning rate": _learning_rate(comparison, styles),
        "loss curves": _curves(comparison, styles),
        "gradient": _by_depth(comparison, "gradient", "Gradient norm"),
        "stream": _by_depth(comparison, "stream", "Stream RMS"),
        "throughput": _throughput(comparison, styles),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _styles(arms: Sequence[Arm]) -> dict[str, dict[str, str]]:
    """A colour for each placement and a dash for each norm, while they last; else one colour an arm."""
    places = sorted({arm.values["placement"] for arm in arms})
    norms = sorted({arm.values["norm"] for arm in arms})
    plain = (
        len(places) * len(norms) >= len(arms) and len(places) <= len(COLOURS) and len(norms) <= len(DASHES)
    )
    styles = {}
    for index, arm in enumerate(sorted(arms, key=lambda a: a.label)):
        colour = places.index(arm.values["placement"]) if plain and len(places) > 1 else index
        dash = norms.index(arm.values["norm"]) if plain and len(places) > 1 else index // len(COLOURS)
        styles[arm.label] = {
            "color": COLOURS[colour % len(COLOURS)],
            "dash": DASHES[dash % len(DASHES)],
            "symbol": MARKERS[dash % len(MARKERS)],
        }
    return styles


def laid_out(figure: go.Figure, height: int = 440, **more: Any) -> go.Figure:
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 60, "r": 16, "t": 16, "b": 50},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "y": -0.2, "yanchor": "top"},
        hovermode="closest",
        **more,
    )
    figure.update_xaxes(gridcolor=GRID, zeroline=False, automargin=True, title_standoff=8)
    figure.update_yaxes(gridcolor=GRID, zeroline=False, automargin=True)
    return figure


def _learning_rate(comparison: Comparison, styles: dict[str, dict[str, str]]) -> go.Figure:
    figure = go.Figure()
    for arm in comparison.summary.arms:
        style = styles[arm.label]
        x = [p.lr for p in arm.points]
        means = [p.loss.mean if math.isfinite(p.loss.mean) else None for p in arm.points]
        halves = [p.loss.half or 0.0 for p in arm.points]
        line = {"color": style["color"], "dash": style["dash"]}
        if any(halves) and len(x) > 1:
            top = [m and m + h for m, h in zip(means, halves, strict=True)]
            bottom = [m and m - h for m, h in zip(means, halves, strict=True)]
            figure.add_scatter(
                x=x + x[::-1],
                y=top + bottom[::-1],
                fill="toself",
                fillcolor=_transparent(style["color"]),
                line={"width": 0},
                mode="lines",
                hoverinfo="skip",
                showlegend=False,
                legendgroup=arm.label,
            )
        figure.add_scatter(
            x=x,
            y=means,
            name=arm.label,
            legendgroup=arm.label,
            mode="lines+markers",
            line=line,
            marker={"symbol": style["symbol"], "size": 8, "color": style["color"]},
            customdata=[(str(p.loss), p.diverged, len(p.losses)) for p in arm.points],
            hovertemplate="lr %{x:.3g}: %{customdata[0]}<br>%{customdata[1]} of %{customdata[2]} diverged",
        )
    _plateau(figure, comparison)
    rates = sorted({p.lr for arm in comparison.summary.arms for p in arm.points})
    ticks = rates if len(rates) <= 8 else rates[:: math.ceil(len(rates) / 8)]
    figure.update_xaxes(
        type="log", title="learning rate", tickvals=ticks, ticktext=[f"{rate:.2g}" for rate in ticks]
    )
    figure.update_yaxes(title=f"held-out loss, {comparison.about['loss_name']}")
    return laid_out(figure)


def _curves(comparison: Comparison, styles: dict[str, dict[str, str]]) -> go.Figure:
    figure = go.Figure()
    for arm in comparison.summary.arms:
        sums: dict[int, list[float]] = defaultdict(list)
        for _, outcome in _best_runs(comparison, arm):
            for step, loss in outcome.curve:
                if loss is not None:
                    sums[step].append(loss)
        steps = sorted(sums)
        style = styles[arm.label]
        figure.add_scatter(
            x=steps,
            y=[fmean(sums[s]) for s in steps],
            name=f"{arm.label}, lr {arm.best.lr:.3g}",
            mode="lines",
            line={"color": style["color"], "dash": style["dash"]},
            hovertemplate="step %{x}: %{y:.3f}",
        )
    _plateau(figure, comparison)
    figure.update_xaxes(title="step")
    figure.update_yaxes(title=f"training loss, {comparison.about['loss_name']}")
    return laid_out(figure)


def _plateau(figure: go.Figure, comparison: Comparison) -> None:
    plateau = comparison.summary.plateau
    if plateau is not None:
        figure.add_hline(
            y=plateau,
            line={"dash": "dot", "width": 1, "color": "gray"},
            annotation={"text": "a blind guess", "font": {"color": "gray", "size": 11}},
        )


def _by_depth(comparison: Comparison, what: str, title: str) -> go.Figure | None:
    """Two heat maps, at the start and at the end, with one scale of colours."""
    arms = list(comparison.summary.arms)[::-1]
    panels: dict[str, list[list[float | None]]] = {"start": [], "end": []}
    for arm in arms:
        runs = _best_runs(comparison, arm)
        for when, panel in panels.items():
            panel.append(_mean_rows([o.by_depth.get(when, {}).get(what, []) for _, o in runs]))
    numbers = [math.log10(v) for p in panels.values() for r in p for v in r if v]
    if not numbers:
        return None
    figure = make_subplots(
        1, 2, subplot_titles=("before training", "after"), shared_yaxes=True, horizontal_spacing=0.04
    )
    for column, panel in enumerate(panels.values(), start=1):
        width = max((len(r) for r in panel), default=0)
        figure.add_trace(
            go.Heatmap(
                z=[[math.log10(v) if v else None for v in r] + [None] * (width - len(r)) for r in panel],
                customdata=[list(r) + [None] * (width - len(r)) for r in panel],
                x=list(range(1, width + 1)),
                y=[arm.label for arm in arms],
                coloraxis="coloraxis",
                hovertemplate="%{y}, layer %{x}: %{customdata:.3g}<extra></extra>",
                xgap=1,
                ygap=1,
            ),
            row=1,
            col=column,
        )
    low, high = min(numbers), max(numbers)
    ticks = [round(low + (high - low) * k / 4, 6) for k in range(5)] if high > low else [low]
    figure.update_layout(
        coloraxis={
            "colorscale": "Cividis",
            "colorbar": {
                **{"orientation": "h", "y": -0.2, "yanchor": "top", "thickness": 12, "len": 0.9},
                **{"title": {"text": title, "side": "bottom"}},
                **{"tickvals": ticks, "ticktext": [f"{10**t:.2g}" for t in ticks]},
            },
        }
    )
    figure.update_xaxes(title="layer", dtick=max(1, max(len(r) for p in panels.values() for r in p) // 8))
    laid_out(figure, height=190 + 30 * max(4, len(arms)))
    figure.update_layout(margin={"t": 36})
    return figure


def _mean_rows(rows: list[list[float | None]]) -> list[float | None]:
    """The mean over seeds, layer by layer; None where a seed has no number."""
    length = min((len(r) for r in rows), default=0)
    columns = [[r[k] for r in rows] for k in range(length)]
    return [None if any(v is None for v in c) else fmean(v for v in c if v is not None) for c in columns]


def _throughput(comparison: Comparison, styles: dict[str, dict[str, str]]) -> go.Figure:
    """The median over all runs of an arm; the whisker goes from the slowest quarter to the fastest."""
    arms = list(comparison.summary.arms)[::-1]
    low, high = ([abs(arm.speeds[k] - arm.units_per_second) for arm in arms] for k in (0, 1))
    figure = go.Figure(
        go.Bar(
            x=[arm.units_per_second for arm in arms],
            y=[arm.label for arm in arms],
            orientation="h",
            marker={"color": [styles[arm.label]["color"] for arm in arms]},
            error_x={"type": "data", "array": high, "arrayminus": low, "color": "gray"},
            customdata=[arm.step_ms for arm in arms],
            hovertemplate="%{x:,.0f} a second<br>%{customdata:.1f} ms a step<extra></extra>",
        )
    )
    figure.update_xaxes(title=f"{comparison.about['unit']} a second", rangemode="tozero")
    return laid_out(figure, height=130 + 30 * max(3, len(arms)), showlegend=False)


def _best_runs(comparison: Comparison, arm: Arm) -> list[tuple[Run, Outcome]]:
    """The runs of an arm at its best learning rate, the longest ones."""
    runs = [
        (run, o)
        for run, o in comparison.results
        if o.status != "failed" and run.lr == arm.best.lr and _belongs(run, arm)
    ]
    longest = max(run.last for run, _ in runs)
    return [(run, o) for run, o in runs if run.last == longest]


def _belongs(run: Run, arm: Arm) -> bool:
    return all(run.value(name) == value for name, value in arm.values.items())


def _transparent(colour: str) -> str:
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
