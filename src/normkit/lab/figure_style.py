"""How figures look: an arm has one colour, one dash and one marker, the same in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from normkit.lab.arms import Arm

__all__ = [
    "COLOURS",
    "DASHES",
    "MARKERS",
    "Style",
    "arm_styles",
    "laid_out",
    "short",
    "transparent",
    "wrapped",
]

# Okabe and Ito's, without the yellow and the black, which one of the two themes would hide.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F", "#8C6BB1")
# Six dashes and seven markers: their pairs repeat only after 42. No "x", which marks clipped points.
DASHES = ("solid", "dot", "dash", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "diamond", "square", "cross", "triangle-up", "star", "triangle-down")
LONGEST = 24  # letters of a word
GRID = "rgba(128,128,128,0.25)"


@dataclass(frozen=True)
class Style:
    """Of an arm."""

    color: str
    dash: str
    symbol: str

    @property
    def line(self) -> dict[str, str]:
        return {"color": self.color, "dash": self.dash}

    @property
    def marker(self) -> dict[str, Any]:
        return {"color": self.color, "symbol": self.symbol, "size": 8}


def arm_styles(arms: Sequence[Arm]) -> dict[str, Style]:
    """By label. If two things differ, one of them is the colour, and the other dash and marker; else arms
    are counted through."""
    names = list(dict.fromkeys(name for arm in arms for name in arm.values))
    values = {name: sorted({arm.values.get(name) for arm in arms}, key=str) for name in names}
    differ = sorted((name for name in names if len(values[name]) > 1), key=lambda n: n != "placement")
    two = len(differ) == 2 and len(values[differ[0]]) <= len(COLOURS)
    styles = {}
    for index, arm in enumerate(sorted(arms, key=lambda arm: arm.label)):
        if two:
            colour, shape = (values[name].index(arm.values.get(name)) for name in differ)
        else:
            colour, shape = index % len(COLOURS), index // len(COLOURS)
        styles[arm.label] = Style(COLOURS[colour], DASHES[shape % len(DASHES)], MARKERS[shape % len(MARKERS)])
    return styles


def laid_out(figure: go.Figure, height: int = 440, **more: Any) -> go.Figure:
    """With the layout that all figures share."""
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 60, "r": 16, "t": 16, "b": 58},
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


def short(number: float) -> str:
    """Two digits, for a tick.

    Example:
        >>> short(0.00311), short(128.4)
        ('0.0031', '130')
    """
    return f"{float(f'{number:.2g}'):g}"


def transparent(colour: str) -> str:
    """The colour of a band."""
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.1)"


def wrapped(text: str, width: int) -> str:
    """Over several lines, where it has spaces; a word that no phone has room for is broken.

    Example:
        >>> wrapped("layer · deepnorm · depth 12", 16)
        'layer · deepnorm<br>· depth 12'
    """
    lines = [""]
    words = [word[k : k + LONGEST] for word in text.split() for k in range(0, len(word), LONGEST)]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "<br>".join(lines)
