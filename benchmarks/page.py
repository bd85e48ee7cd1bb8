"""docs/speed.md: everything that was measured, as a page. ``python -m benchmarks.page`` writes it again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import goals
from normkit.bench.cells import PEERS, Row

__all__ = ["write"]

ROOT = Path(__file__).parent.parent
HEAD = """# How fast it is

Written by `make bench`, from benchmarks/results.json. All candidates of a cell take turns in one process; a
number is the low quartile of its rounds. A ratio says how many times as long as ours a peer takes: **above 1,
ours is faster**. Cells that lose are shown like all others. A question mark: other programs used the machine.
"""


def write(path: Path, machine: dict[str, Any], rows: list[Row]) -> None:
    """The page of a whole run."""
    parts = [
        HEAD,
        "\n".join(f"    {key:26}{_plain(value)}" for key, value in machine.items()),
        "![Time of a norm over the time of a copy](speed.svg)",
        "## In short\n\nWorst, middle and best cell: how many times as long as ours the peer takes.",
        _grid(("norm", "way", "dtype", "cells", "torch", "torch.compile", "ONNX Runtime"), _summary(rows)),
        "## Goals\n\n`>=`: the peer takes at least that many times as long; `<=`: ours takes at most.",
        _grid(("", "goal", "bound", "dtype", "met in", "worst", "where"), _goals(rows)),
        "## Every cell\n\nMicroseconds of ours; of each peer, the ratio. clean: ours, without the NaN.",
        _grid(("norm", "way", "input", "dtype", "threads", "ours, µs", *PEERS[:5]), _cells(rows)),
        "## Transformers\n\nA training step is forward, loss, backward; decoding is 96 tokens with a cache.\n"
        "weights: reading every weight once a token and nothing else, which bounds the ratio to any peer.",
        _grid(
            ("model", "way", "dim x depth x batch x length", "ours, ms", *PEERS[1:2], *PEERS[5:]),
            _models(rows),
        ),
    ]
    path.write_text("\n\n".join(part.strip("\n") for part in parts) + "\n")


def _plain(value: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _summary(rows: list[Row]) -> Iterable[tuple[str, ...]]:
    kinds = dict.fromkeys((r.op, r.way, r.dtype) for r in rows if r.family in ("rows", "channels"))
    for op, way, dtype in kinds:
        own = [row for row in rows if (row.op, row.way, row.dtype) == (op, way, dtype)]
        yield op, way, dtype, str(len(own)), *(_range(own, peer) for peer in ("eager", "compile", "onnx"))


def _range(rows: list[Row], peer: str) -> str:
    ratios = [ratio for row in rows if (ratio := row.ratio(peer)) is not None]
    return f"{min(ratios):.2f} · {median(ratios):.2f} · {max(ratios):.1f}" if ratios else ""


def _goals(rows: list[Row]) -> Iterable[tuple[str, ...]]:
    for v in goals.check(rows):
        word = "met" if v.met == v.cells else "**missed**"
        worst = f"{v.number:.2f}{v.worst.doubt}"
        yield word, v.goal.text, v.goal.shown, v.dtype, f"{v.met}/{v.cells}", worst, goals.where(v)


def _models(rows: list[Row]) -> Iterable[tuple[str, ...]]:
    for row in (row for row in rows if row.family == "models"):
        peers = ("eager", *PEERS[5:])
        shown = ("" if (ratio := row.ratio(peer)) is None else f"{ratio:.2f}" for peer in peers)
        yield row.op, row.way, row.place, f"{row.us['ours'] / 1e3:.0f}{row.doubt}", *shown
        if row.peak is not None:
            memory = (f"{row.peak[peer]:.0f} MB" if peer in row.peak else "" for peer in ("ours", *peers))
            yield "", "peak memory", "", *memory


def _cells(rows: list[Row]) -> Iterable[tuple[str, ...]]:
    for row in (row for row in rows if row.family != "models"):
        ratios = (row.ratio(peer) for peer in PEERS[:5])
        shown = ("" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
        time = f"{row.us['ours']:,.1f}{row.doubt}"
        yield row.op, row.way, row.place, row.dtype, str(row.threads), time, *shown


def _grid(head: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ("---",) * len(head), *lines))


if __name__ == "__main__":
    kept = json.loads((ROOT / "benchmarks/results.json").read_text())
    measured = [Row(**{**row, "shape": tuple(row["shape"])}) for row in kept["rows"]]
    write(ROOT / "docs/speed.md", kept["machine"], measured)
