"""``python -m benchmarks``: measure, print the table and the goals, write JSON, draw the figure."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import call, cells, channels, figure, goals, machine, rows, table
from benchmarks.compiling import fill_cache
from benchmarks.timer import Budget

FAMILIES: dict[str, Any] = {"rows": rows, "channels": channels, "call": call}
ROOT = Path(__file__).parent.parent
FULL, SMOKE = Budget(0.5, fewest=7, most=40), Budget(0.1, fewest=3, most=10)


def main() -> None:
    args = _arguments()
    console = Console(width=100, highlight=False)
    label = "smoke run (few rounds, few shapes: not a measurement)" if args.quick else "full run"
    console.print(label.capitalize(), style="bold")
    described = machine.describe()
    for key, value in described.items():
        console.print(f"  {key:26}{value}")
    names = [args.only] if args.only else list(FAMILIES)
    todo = [cell for name in names for cell in FAMILIES[name].cells(args.quick)]
    with _bar(console) as bar:
        _compile(todo, bar)
        clock = machine.Clock()
        measured = _measure(todo, SMOKE if args.quick else FULL, bar)
        described["used by others"], noise = clock.others(), clock.remark()
    remark = f" (smoke run){noise}" if args.quick else noise
    table.show(measured, console)
    goals.show(measured, console, remark)
    _write(args.json, {"run": label, "machine": described}, measured)
    title = f"{described['cpu']}, torch {described['torch']}"
    drawn = figure.draw(measured, args.figure, title, remark)
    console.print(f"\n{label.capitalize()}{noise}")
    for path in (args.json, *([args.figure] if drawn else [])):
        console.print(f"  wrote {path}", soft_wrap=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run of half a minute")
    parser.add_argument("--only", choices=FAMILIES, help="one family of norms")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--figure", type=Path, help="where the figure goes")
    args = parser.parse_args()
    whole = not args.quick and args.only is None  # half a run never overwrites what is published
    args.json = args.json or ROOT / ("benchmarks/results.json" if whole else "build/bench.json")
    args.figure = args.figure or ROOT / ("docs/speed.svg" if whole else "build/bench.svg")
    return args


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description:10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[cell]}"), console=console)


def _compile(todo: list[cells.Cell], bar: Progress) -> None:
    count = sum(cell.compiled for cell in todo)
    if count:
        task = bar.add_task("compiling", total=count, cell="")
        for _ in fill_cache(todo):
            bar.advance(task)


def _measure(todo: list[cells.Cell], budget: Budget, bar: Progress) -> list[cells.Row]:
    found: list[cells.Row] = []
    task = bar.add_task("measuring", total=len(todo), cell="")
    for cell in todo:
        bar.update(task, cell=f"{cell.op} {cell.way} {'x'.join(map(str, cell.shape))} {cell.dtype}")
        torch.set_num_threads(cell.threads)
        with torch.set_grad_enabled(cell.way == "with grad"):
            found += cells.run(cell, FAMILIES[cell.family].candidates(cell), budget)
        bar.advance(task)
    bar.update(task, cell="")
    return found


def _write(path: Path, head: dict[str, Any], measured: list[cells.Row]) -> None:
    """One row a line, so that a diff reads well."""
    lines = ",\n".join(f"    {json.dumps(asdict(row))}" for row in measured)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(head, indent=2)[:-2] + f',\n  "rows": [\n{lines}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
