"""The figures of the studies, drawn from their description and their rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import plotly.graph_objects as go

from normkit.lab.analysis import interval
from normkit.lab.design import Plot
from normkit.lab.figure_style import COLOURS, DASHES, MARKERS, laid_out, wrapped

__all__ = ["draw"]


def draw(plot: Plot, rows: Sequence[dict[str, Any]]) -> go.Figure:
    """Mean over seeds, with the 95 % interval as a whisker."""
    groups: dict[str, dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        matches = all(
            value(row.get(name)) if callable(value) else row.get(name) == value
            for name, value in plot.where.items()
        )
        y = row.get(plot.y)
        if matches and plot.x in row and y is not None and math.isfinite(y):
            line = _line(plot, row)
            groups[line][row[plot.x]].append(float(y))
    # A line has one colour in all figures of a study.
    names = list(dict.fromkeys(_line(plot, row) for row in rows))
    figure = go.Figure()
    for line, points in groups.items():
        _add(figure, plot, line, points, names.index(line))
    if plot.y == "loss":
        for name, loss in _baselines(rows).items():
            figure.add_hline(
                loss, line={"dash": "dot", "width": 1, "color": "gray"}, annotation={"text": name}
            )
    lying = plot.kind == "rows"
    named, measured = (
        (figure.update_yaxes, figure.update_xaxes) if lying else (figure.update_xaxes, figure.update_yaxes)
    )
    named(title=plot.x_title or None)
    measured(title=plot.y_title or plot.y)
    if plot.log_x and plot.kind == "line":
        ticks = sorted({x for points in groups.values() for x in points if _above_zero(x)})
        figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    if plot.log_y:
        decades = _decades([y for points in groups.values() for ys in points.values() for y in ys if y > 0])
        measured(type="log", exponentformat="power", dtick="D2" if decades < 2 else math.ceil(decades / 8))
    if lying:
        named(autorange="reversed", automargin=True)
    return laid_out(figure, 380, showlegend=len(groups) > 1)


def _add(figure: go.Figure, plot: Plot, line: str, points: dict[Any, list[float]], index: int) -> None:
    keys = sorted(points) if all(isinstance(x, int | float) for x in points) else list(points)
    means = [interval(points[x]) for x in keys]
    colour = COLOURS[index % len(COLOURS)]
    whisker = {"type": "data", "array": [m.half or 0.0 for m in means], "thickness": 1, "color": colour}
    values = [m.mean for m in means]
    most = 0.9 if plot.log_y else 1.0  # an interval that reaches 0 cannot be drawn on a logarithmic axis
    if plot.log_y or min(map(min, points.values())) >= 0:  # and what is never negative ends at 0
        whisker["arrayminus"] = [min(m.half or 0.0, most * abs(m.mean)) for m in means]
    if plot.kind in ("bar", "rows"):
        shades = [COLOURS[k % len(COLOURS)] for k in range(len(keys))] if plot.by is None else colour
        whisker["color"] = "gray"
        look: dict[str, Any] = {"name": line, "marker": {"color": shades}}
        if plot.kind == "bar":
            figure.add_bar(x=[_wrapped(x) for x in keys], y=values, error_y=whisker, **look)
        else:
            labels = [_wrapped(x, 20) for x in keys]
            figure.add_bar(x=values, y=labels, error_x=whisker, orientation="h", **look)
        return
    dash, symbol = DASHES[index // len(COLOURS) % len(DASHES)], MARKERS[index % len(MARKERS)]
    figure.add_scatter(
        x=keys,
        mode="lines+markers",
        line={"color": colour, "dash": dash},
        marker={"symbol": symbol, "size": 8},
        name=line,
        y=values,
        error_y=whisker,
    )


def _baselines(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What needs no model, as the mean over seeds, which have data of their own."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, loss in row.items():
            if name.startswith("baseline_"):
                found[name.removeprefix("baseline_").replace("_", " ")].append(loss)
    return {name: fmean(losses) for name, losses in found.items()}


def _line(plot: Plot, row: Mapping[str, Any]) -> str:
    """What the legend calls the line that a row belongs to."""
    if plot.by is None:
        return ""
    value = row.get(plot.by)
    if isinstance(value, str):
        name = value.rpartition(":")[2]
        return plot.names.get(name, name)
    return f"{plot.by.replace('_', ' ')} {value:g}" if isinstance(value, float | int) else str(value)


def _wrapped(value: Any, width: int = 14) -> str:
    """Long names of bars go over several lines."""
    text = (
        value
        if isinstance(value, str)
        else f"{value:g}"
        if not isinstance(value, bool)
        else str(value).lower()
    )
    return wrapped(text, width)


def _decades(values: Sequence[float]) -> float:
    return math.log10(max(values) / min(values)) if values else 0.0


def _above_zero(x: Any) -> bool:
    return isinstance(x, int | float) and x > 0
