"""The rows in print: one table for each norm and each way to call it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from normkit.bench.cells import PEERS, Row

__all__ = ["show"]

NAMES = {
    "copy_": "copy_",
    "eager": "torch",
    "compile": "torch.compile",
    "onnx": "ONNX Runtime",
    "clean": "without NaN",
    "hf": "Hugging Face",
    "x": "x-transformers",
    "weights": "the weights",
}
LEGEND = """Each cell: the time of one call (low quartile), and that time divided by ours.
Above 1 ours is faster. [red]![/red] ours is slower. ? others used the processors meanwhile: do not trust it.
copy_ into a ready buffer shows what memory allows. out=: ours writes into a ready buffer, too;
ONNX Runtime always does. cl: channels_last."""


def show(rows: list[Row], console: Console) -> None:
    """Print every row, losses included."""
    console.print(LEGEND)
    for op, way in dict.fromkeys((row.op, row.way) for row in rows):
        console.print()
        console.print(_table(f"{op}, {way}", [row for row in rows if (row.op, row.way) == (op, way)]))


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0))
    table.add_column("shape", width=16, no_wrap=True)
    table.add_column("dtype", width=5)
    table.add_column("threads", width=7, justify="right")
    table.add_column("ours", width=8, justify="right")
    peers = [peer for peer in PEERS if any(peer in row.us for row in rows)]
    for peer in peers:
        table.add_column(NAMES[peer], width=14, justify="right", no_wrap=True)
    for row in rows:
        cells = [_cell(row, peer) for peer in peers]
        table.add_row(row.place, row.dtype, str(row.threads), _time(row.us["ours"]) + row.doubt, *cells)
        if row.peak is not None:
            table.add_row("  peak memory", "", "", *(f"{row.peak[name]:.0f} MB" for name in ("ours", *peers)))
    return table


def _cell(row: Row, peer: str) -> Text:
    ratio = row.ratio(peer)
    if ratio is None:
        return Text("")
    lost = peer != "copy_" and ratio < 1
    shown = f"{'!' if lost else ''}{ratio:.2f}"
    return Text(f"{_time(row.us[peer])} {shown:>6}", style="red" if lost else "")


def _time(us: float) -> str:
    """Three digits and a unit."""
    value, unit = (us, "us") if us < 999.5 else (us / 1e3, "ms")
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"
