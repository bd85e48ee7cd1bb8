"""One figure: how many times as long as copy_ a norm takes, over the size of its input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from normkit.bench.cells import Row
from normkit.bench.figure import OURS, STYLE

__all__ = ["draw"]

OPS, WAYS = ("LayerNorm", "RMSNorm"), ("forward", "backward")
LINES = [  # name, whose time, colour, line
    ("normkit", "ours", OURS, "-"),
    ("normkit, out=", "out=", OURS, "--"),
    ("torch", "eager", "#6b7280", "-"),
    ("torch.compile", "compile", "#e0912f", "-"),
    ("ONNX Runtime", "onnx", "#b07aa1", "-"),
]


def draw(rows: list[Row], path: Path, title: str, remark: str = "") -> bool:
    """Draw the norms of rows in float32 with the most threads; False if there is nothing to draw."""
    rows = [row for row in rows if row.family == "rows" and row.dtype == "fp32"]
    if not rows:
        return False
    threads = max(row.threads for row in rows)
    rows = [row for row in rows if row.threads == threads]
    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 7.2), facecolor="white")
        axes = figure.subplots(2, 2, sharex=True, sharey="row")
        for way, line in zip(WAYS, axes, strict=True):
            for op, ax in zip(OPS, line, strict=True):
                _panel(ax, [row for row in rows if row.op == op], op, way)
        for ax in axes[:, 0]:
            ax.set_ylabel("time / time of copy_")
        for ax in axes[1]:
            ax.set_xlabel("size of the input")
        handles, names = axes[0, 0].get_legend_handles_labels()
        figure.suptitle(f"{title}, float32, {threads} threads{remark}", fontsize=11, x=0.01, ha="left")
        figure.legend(handles, names, loc="upper left", bbox_to_anchor=(0, 0.965), ncols=5, frameon=False)
        figure.tight_layout(rect=(0, 0, 1, 0.945))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
    return True


def _panel(ax: Axes, rows: list[Row], op: str, way: str) -> None:
    for name, who, colour, line in LINES:
        source = f"{way} out=" if who == "out=" else way
        points = sorted(_points([row for row in rows if row.way == source], "ours" if who == "out=" else who))
        if points:
            width, order = (2.2, 3) if colour == OURS else (1.5, 2)
            style: dict[str, Any] = {"color": colour, "lw": width, "zorder": order, "marker": "o", "ms": 4}
            ax.plot(*zip(*points, strict=True), line, label=name, **style)
    ax.axhline(1, color="#111827", lw=1)
    ax.annotate("copy_", (0, 1), (4, 3), xycoords=("axes fraction", "data"), textcoords="offset points")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_title(f"{op}, {way}", loc="left", fontsize=11, fontweight="bold")
    ax.xaxis.set_major_locator(FixedLocator([2.0**k for k in range(8, 28, 4)]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _bytes(value)))
    ax.yaxis.set_major_locator(FixedLocator([0.5, 1, 2, 5, 10, 20, 50, 100]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_locator(NullLocator())


def _points(rows: list[Row], who: str) -> list[tuple[float, float]]:
    return [(4.0 * math.prod(row.shape), row.us[who] / row.us["copy_"]) for row in rows if who in row.us]


def _bytes(value: float) -> str:
    power = int(math.log2(value)) // 10
    return f"{value / 1024**power:g} {('B', 'KiB', 'MiB')[power]}"
