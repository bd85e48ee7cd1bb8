"""The rows of ``normkit bench`` in print: GB/s, 80 columns."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from normkit.bench.cells import Row
from normkit.bench.grid import rate

__all__ = ["LEGEND", "NAMES", "tables"]

NAMES = {  # candidate -> its column
    "copy_": "copy",
    "ours": "ours",
    "out=": "out=",
    "eager": "torch",
    "compile": "compile",
    "liger": "Liger",
    "quack": "quack",
}
LEGEND = """GB/s at the median: what a call cannot do without (forward 2, backward 3, add 4
times its input) over its time. ±: half the width of the middle half, in percent
of the time. ! torch or another peer is faster. ? others used the processors.
cl: channels_last."""


def tables(rows: list[Row]) -> list[Table]:
    """One for each way to call a norm."""
    ways = dict.fromkeys(_way(row) for row in rows)
    shown = [name for name in NAMES if name == "out=" or any(name in row.us for row in rows)]
    return [_table(way, [row for row in rows if _way(row) == way], shown) for way in ways]


def _table(way: str, rows: list[Row], shown: list[str]) -> Table:
    table = Table(title=way, title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0))
    for name, width in (("norm", 8), ("shape", 12), ("dtype", 5), ("by", 9)):
        table.add_column(name, width=width, no_wrap=True)
    direct = [row for row in rows if not row.way.endswith("out=")]
    ready = {(r.op, r.shape, r.dtype, r.layout): r for r in rows if r.way.endswith("out=")}
    room = not {"liger", "quack"} & set(shown)  # 80 columns; the file has everything
    shown = [name for name in shown if name != "out=" or (ready and room)]
    for name in shown:
        table.add_column(NAMES[name], width=max(5, len(NAMES[name])), justify="right", no_wrap=True)
    table.add_column("±", width=3, justify="right")
    for row in direct:
        out = ready.get((row.op, row.shape, row.dtype, row.layout))
        best = max((rate(row, name) or 0) for name in shown if name not in ("copy_", "ours", "out="))
        cells = [
            Text("" if out is None else _number(rate(out, "ours")))
            if name == "out="
            else Text(_number(rate(row, name)), style="bold" if name == "ours" else "")
            for name in shown
        ]
        mark = "?" if row.doubt else "!" if (rate(row, "ours") or 0) < best else ""
        spread = f"{min(99, 50 * row.spread['ours']):.0f}{mark}"
        op = row.op.replace("Norm", "").replace(" train", "")
        op += " cl" if row.layout == "channels_last" else ""
        table.add_row(op, "x".join(map(str, row.shape)), row.dtype, row.backend, *cells, spread)
    return table


def _way(row: Row) -> str:
    return row.way.removesuffix(" out=")


def _number(value: float | None) -> str:
    """Three digits."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"
