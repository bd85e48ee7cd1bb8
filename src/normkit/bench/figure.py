"""One figure: GB/s of row norms over D, beside a copy. matplotlib is asked for, never required."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from normkit.bench.cells import Row
from normkit.bench.grid import rate

__all__ = ["LINES", "OURS", "STYLE", "draw", "undrawable"]

OURS = "#1d4ed8"
LINES = [  # name, whose time, colour, line
    ("copy", "copy_", "#111827", ":"),
    ("normkit", "ours", OURS, "-"),
    ("torch", "eager", "#6b7280", "-"),
    ("torch.compile", "compile", "#e0912f", "-"),
    ("Liger", "liger", "#b07aa1", "-"),
    ("quack", "quack", "#2f9e6e", "-"),
]
STYLE: Any = {
    "font.size": 11,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9ca3af",
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "svg.hashsalt": "normkit",
}


def undrawable() -> str | None:
    """Why there can be no figure; None if there can."""
    try:
        import matplotlib  # noqa: F401  # is it there?
    except ImportError as error:
        return f"pip install matplotlib: {error}"
    return None


def draw(rows: list[Row], path: Path, title: str, remark: str = "") -> bool:
    """A panel for each norm and way, in the narrowest dtype that was measured; False if there is nothing."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = [row for row in rows if row.family == "rows" and not row.way.endswith("out=")]
    if not rows:
        return False
    dtype = "bf16" if any(row.dtype == "bf16" for row in rows) else "fp32"
    rows = [row for row in rows if row.dtype == dtype]
    ops, ways = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("op", "way"))
    with rc_context(STYLE):
        figure = Figure(figsize=(1 + 4.3 * len(ops), 1 + 3 * len(ways)), facecolor="white")
        axes = figure.subplots(len(ways), len(ops), sharex=True, sharey=True, squeeze=False)
        for way, line in zip(ways, axes, strict=True):
            for op, ax in zip(ops, line, strict=True):
                _panel(ax, sorted((r for r in rows if (r.op, r.way) == (op, way)), key=lambda r: r.shape[-1]))
                ax.set_title(f"{op}, {way}", loc="left", fontsize=11, fontweight="bold")
        axes[0, 0].set_ylim(bottom=0)  # of all panels, once all lines are there
        for ax in axes[:, 0]:
            ax.set_ylabel("GB/s")
        for ax in axes[-1]:
            ax.set_xlabel("D")
        handles, names = axes[0, 0].get_legend_handles_labels()
        figure.suptitle(f"{title}, {dtype}{remark}", fontsize=10, x=0.01, ha="left")
        figure.legend(handles, names, loc="upper left", bbox_to_anchor=(0, 0.97), ncols=6, frameon=False)
        figure.tight_layout(rect=(0, 0, 1, 0.94))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    return True


def _panel(ax: Any, rows: list[Row]) -> None:
    for name, who, colour, line in LINES:
        points = [(row.shape[-1], value) for row in rows if (value := rate(row, who)) is not None]
        if points:
            width = 2.2 if who == "ours" else 1.5
            ax.plot(*zip(*points, strict=True), line, label=name, color=colour, lw=width, marker="o", ms=4)
    ax.set_xscale("log", base=2)
    ax.set_xticks([row.shape[-1] for row in rows], [str(row.shape[-1]) for row in rows])
