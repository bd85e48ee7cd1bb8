"""Figures by depth: heat maps of what happens in each layer, before training and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normkit.lab.arms import Arm, Result
from normkit.lab.figure_style import laid_out, short, wrapped

__all__ = ["by_depth"]

Row = list[float | None]


def by_depth(arms: Sequence[tuple[Arm, list[Result]]], what: str, title: str) -> go.Figure | None:
    """Two heat maps with one scale of colours; None if no layer was measured.

    Args:
        arms: from the best to the worst, each with its runs.
        what: "gradient" or "stream".
        title: of the scale.
    """
    panels: dict[str, list[Row]] = {"start": [], "end": []}
    for _, runs in reversed(arms):
        for when, panel in panels.items():
            panel.append(_mean_row([o.by_depth.get(when, {}).get(what, []) for _, o in runs]))
    numbers = [math.log10(v) for panel in panels.values() for row in panel for v in row if v]
    if not numbers:
        return None
    figure = make_subplots(
        1, 2, subplot_titles=("before", "after"), shared_yaxes=True, horizontal_spacing=0.04
    )
    names = [wrapped(arm.label, 22) for arm, _ in reversed(arms)]
    width = max(len(row) for panel in panels.values() for row in panel)
    for column, panel in enumerate(panels.values(), start=1):
        padded = [row + [None] * (width - len(row)) for row in panel]
        figure.add_trace(
            go.Heatmap(
                z=[[math.log10(v) if v else None for v in row] for row in padded],
                customdata=padded,
                x=list(range(1, width + 1)),
                y=names,
                coloraxis="coloraxis",
                hovertemplate="%{y}, layer %{x}: %{customdata:.3g}<extra></extra>",
                xgap=1,
                ygap=1,
            ),
            row=1,
            col=column,
        )
    low, high = min(numbers), max(numbers)
    ticks = [round(low + (high - low) * k / 2, 6) for k in range(3)] if high > low else [low]
    lines = max(name.count("<br>") for name in names) + 1
    laid_out(figure, height=200 + (16 + 14 * lines) * max(3, len(arms)))
    figure.update_xaxes(title="layer", dtick=max(1, width // 8))
    figure.update_layout(
        margin={"t": 36, "b": 110},
        coloraxis={
            "colorscale": "Cividis",
            "colorbar": {
                **{"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
                **{"thickness": 12, "len": 0.9, "title": {"text": title, "side": "bottom"}},
                **{"tickvals": ticks, "ticktext": [short(10**t) for t in ticks], "tickangle": 0},
            },
        },
    )
    return figure


def _mean_row(rows: list[Row]) -> Row:
    """The mean over seeds, layer by layer; None where a seed has no number."""
    length = min((len(row) for row in rows), default=0)
    columns = [[row[k] for row in rows] for k in range(length)]
    return [None if any(v is None for v in c) else fmean(v for v in c if v is not None) for c in columns]
