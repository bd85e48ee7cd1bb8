"""The figures of a comparison, as plotly's: objects in a notebook, drawings on the page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean, median
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from normkit.lab.arms import Arm, Result
from normkit.lab.depth_figures import by_depth
from normkit.lab.figure_style import Style, arm_styles, laid_out, wrapped
from normkit.lab.loss_figures import (
    add_baselines,
    by_arm,
    by_learning_rate,
    explain_marks,
    matter,
    named,
    put_mark,
    runs_of,
)

if TYPE_CHECKING:
    from normkit.lab.comparison import Comparison

__all__ = ["SENTENCES", "figures", "one_rate"]

MANY = 8  # arms; with more, those that do not matter are drawn pale
SENTENCES = {
    "learning rate": "Each line is an arm. A band is a 95 % interval over seeds, cut where no loss can be; "
    "the best arm has one, and those that are close to it; the others on demand. Low is good; wide and flat "
    "is forgiving. Dotted lines are baselines, which need no model.",
    "short runs": "Each line is an arm, after the first, short round of successive halving: one seed, judged "
    "by validation. The better half of the rates of each arm went on, and those that are close. Low is good; "
    "wide and flat is forgiving. Dotted lines are baselines.",
    "loss by arm": "Held-out loss of each arm, the mean over seeds with its 95 % interval, cut where no loss "
    "can be. Arms are compared seed by seed, so two whose bars overlap may still differ: see “behind” in the "
    "table. Left is good. Dotted lines are baselines, which need no model.",
    "loss curves": "Training loss at each arm's best learning rate, mean over seeds. A curve that lies on "
    "a dotted line knows no more than that baseline.",
    "gradient": "The norm of the gradient of each layer, before training and after, at each arm's best "
    "learning rate. An even row is healthy; a row that fades from left to right, or from right to left, has "
    "layers that learn late.",
    "stream": "The root mean square of the residual stream behind each layer. A row that grows to the right, "
    "as with Pre-LN, means that late layers change the stream by less and less.",
    "throughput": "How much each arm gets through in a second, one thread a run: the median of its runs, "
    "with the middle half as a whisker. Arms whose whiskers overlap are no different.",
}


def figures(comparison: Comparison) -> dict[str, go.Figure]:
    """By name; those without anything to show are left out."""
    summary = comparison.summary
    styles = arm_styles(summary.arms)
    runs = [(arm, _best_runs(comparison, arm)) for arm in summary.arms]
    drawn = {
        **_losses(comparison, styles),
        "loss curves": _curves(comparison, runs, styles),
        "gradient": by_depth(runs, "gradient", "Gradient norm"),
        "stream": by_depth(runs, "stream", "Stream RMS"),
        "throughput": _throughput(comparison, styles),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _losses(comparison: Comparison, styles: dict[str, Style]) -> dict[str, go.Figure]:
    """By learning rate. After pruning the rates of an arm have been trained for different times: then the
    losses that judge are drawn by arm, and the rates as the first, short round has left them."""
    summary, results, unit = comparison.summary, comparison.results, comparison.about["loss_name"]
    first = min((run.last for run, _ in results), default=0)
    short = [(run, o) for run, o in results if run.last == first]
    begun = comparison.summary_of(short) if comparison.about["prune"] and not one_rate(summary.arms) else None
    if begun is None:
        draw = by_arm if one_rate(summary.arms) else by_learning_rate
        return {"learning rate": draw(summary, results, styles, f"held-out loss, {unit}")}
    title = f"validation loss after {first:,} steps, {unit}"
    return {
        "loss": by_arm(summary, results, styles, f"held-out loss, {unit}"),
        "learning rate": by_learning_rate(begun, short, styles, title),
    }


def one_rate(arms: Iterable[Arm]) -> bool:
    """Has every arm been trained with the same, single learning rate?"""
    return len({rate for arm in arms for rate in arm.tried}) == 1


def _curves(
    comparison: Comparison, runs: list[tuple[Arm, list[Result]]], styles: dict[str, Style]
) -> go.Figure:
    """Training losses; those beyond the ceiling are drawn there, and the first of them is marked."""
    summary = comparison.summary
    curves = {arm.label: _mean_curve(results) for arm, results in runs}
    ceiling = _ceiling([next(iter(curve.values())) for curve in curves.values() if curve], summary.plateau)
    pale = set(curves) - set(matter(summary)) if len(curves) > MANY else set()
    figure = go.Figure()
    for arm, _ in runs:
        style, curve = styles[arm.label], curves[arm.label]
        figure.add_scatter(
            x=list(curve),
            y=[min(loss, ceiling) for loss in curve.values()],
            name=f"{named(arm)}, lr {arm.best.lr:.3g}",
            legendgroup=arm.label,
            mode="lines",
            line=style.line,
            opacity=0.4 if arm.label in pale else 1.0,
            customdata=list(curve.values()),
            hovertemplate="step %{x}: %{customdata:.3f}",
        )
        beyond = [(step, ceiling) for step, loss in curve.items() if loss > ceiling]
        put_mark(figure, arm, beyond[:1], style)
    explain_marks(figure, "off the scale: the loss is higher than the figure")
    laid_out(figure)
    figure.update_xaxes(title="step")
    figure.update_yaxes(title=f"training loss, {comparison.about['loss_name']}")
    add_baselines(figure, summary)
    return figure


def _mean_curve(results: list[Result]) -> dict[int, float]:
    """Training loss by step, the mean over the seeds that got there."""
    losses: dict[int, list[float]] = defaultdict(list)
    for _, outcome in results:
        for step, loss in outcome.curve:
            if loss is not None:
                losses[step].append(loss)
    return {step: fmean(losses[step]) for step in sorted(losses)}


def _ceiling(firsts: list[float], plateau: float | None) -> float:
    """One run that explodes must not flatten all others."""
    if not firsts or plateau is None or plateau <= 0:
        return math.inf
    return max(2 * plateau, 1.5 * median(firsts))


def _throughput(comparison: Comparison, styles: dict[str, Style]) -> go.Figure:
    """The median over all runs of an arm; the whisker goes from the slowest quarter to the fastest."""
    figure = go.Figure()
    arms = comparison.summary.arms
    names = {arm.label: wrapped(arm.label, 24) for arm in arms}
    for arm in reversed(arms):
        low, high = (abs(speed - arm.units_per_second) for speed in arm.speeds)
        style = styles[arm.label]
        figure.add_scatter(
            x=[arm.units_per_second],
            y=[names[arm.label]],
            name=arm.label,
            legendgroup=arm.label,
            mode="markers",
            marker=style.marker,
            error_x={"type": "data", "array": [high], "arrayminus": [low], "color": style.color},
            customdata=[arm.step_ms],
            hovertemplate="%{x:,.0f} a second<br>%{customdata:.1f} ms a step<extra></extra>",
        )
    lines = max(name.count("<br>") for name in names.values()) + 1
    laid_out(figure, height=110 + (14 + 14 * lines) * max(3, len(arms)), showlegend=False)
    figure.update_xaxes(title=f"{comparison.about['unit']} a second", rangemode="tozero")
    figure.update_yaxes(type="category")
    return figure


def _best_runs(comparison: Comparison, arm: Arm) -> list[Result]:
    """The runs of an arm at its best learning rate, the longest ones."""
    runs = [(run, o) for run, o in runs_of(arm, comparison.results) if run.lr == arm.best.lr]
    longest = max(run.last for run, _ in runs)
    return [(run, o) for run, o in runs if run.last == longest]
