"""``python -m benchmarks``: measure, print the table and the goals, write JSON, draw the figure."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import call, channels, figure, goals, models, nan, page, rows, table
from normkit.bench import cells, machine
from normkit.bench.compiling import fill_cache
from normkit.bench.devices import version
from normkit.bench.results import write
from normkit.bench.timer import Budget

FAMILIES: dict[str, Any] = {
    "rows": rows,
    "channels": channels,
    "nan": nan,
    "call": call,
    "models": models,
}
ROOT = Path(__file__).parent.parent
FULL, SMOKE = Budget(0.25, fewest=5, most=40), Budget(0.1, fewest=3, most=10)


def main() -> None:
    args = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the measuring, as Ctrl-C does
    console = Console(width=100, highlight=False)
    described = machine.describe() | {"onnxruntime": version("onnxruntime")}
    for key, value in described.items():
        console.print(f"{key:26}{value}")
    names = [args.only] if args.only else list(FAMILIES)
    todo = [cell for name in names for cell in FAMILIES[name].cells(args.quick)]
    with _bar(console) as bar:
        _compile(todo, bar)
        clock = machine.Clock()
        measured, done = _measure(todo, SMOKE if args.quick else FULL, bar)
        described["used by others"], noise = clock.others(), clock.remark()
    label = "smoke run: few rounds, few shapes" if args.quick else "full run"
    label = label if done == len(todo) else f"interrupted after {done} of {len(todo)} cells"
    remark = f" ({label}){noise}" if label != "full run" else noise
    table.show(measured, console)
    goals.show(measured, console, remark)
    whole = label == "full run" and args.only is None  # less than that never overwrites what is published
    results = args.json or ROOT / ("benchmarks/results.json" if whole else "build/bench.json")
    drawing = args.figure or ROOT / ("docs/speed.svg" if whole else "build/bench.svg")
    write(results, {"run": label, "machine": described}, measured)
    drawn = figure.draw(measured, drawing, f"{described['cpu']}, torch {described['torch']}", remark)
    if whole:
        page.write(ROOT / "docs/speed.md", described, measured)
    console.print(f"\n{label.capitalize()}{noise}")
    console.print(f"wrote {results}{f' and {drawing}' if drawn else ''}", soft_wrap=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run of half a minute")
    parser.add_argument("--only", choices=FAMILIES, help="one family of norms")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--figure", type=Path, help="where the figure goes")
    return parser.parse_args()


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description:10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[cell]}"), console=console)


def _compile(todo: list[cells.Cell], bar: Progress) -> None:
    count = sum(cell.compiled for cell in todo)
    if count:
        task = bar.add_task("compiling", total=count, cell="")
        for done, _ in enumerate(fill_cache(todo, home=__package__), start=1):
            bar.advance(task)
            _log(bar, "compiled", done, count)


def _measure(todo: list[cells.Cell], budget: Budget, bar: Progress) -> tuple[list[cells.Row], int]:
    """All rows, and the number of cells that they come from: fewer than asked for after an interrupt."""
    found: list[cells.Row] = []
    task = bar.add_task("measuring", total=len(todo), cell="")
    for done, cell in enumerate(todo):
        bar.update(task, cell=f"{cell.op} {cell.way} {'x'.join(map(str, cell.shape))} {cell.dtype}")
        torch.set_num_threads(cell.threads)
        try:
            with torch.set_grad_enabled(cell.way == "with grad"):
                candidates = FAMILIES[cell.family].candidates(cell)
                _check(cell, candidates)
                found += cells.run(cell, candidates, budget)
        except KeyboardInterrupt:
            return found, done
        bar.advance(task)
        _log(bar, "measured", done + 1, len(todo))
    bar.update(task, cell="")
    return found, len(todo)


def _log(bar: Progress, what: str, done: int, total: int) -> None:
    """A line now and then where there is no terminal to draw a bar on."""
    if not bar.console.is_terminal and done % 20 == 0:
        bar.console.print(f"{what} {done} of {total} cells")


def _check(cell: cells.Cell, candidates: dict[str, cells.Call]) -> None:
    if cell.family not in ("models", "nan"):  # weights of their own, or NaN: the tests compare those
        assert not (found := cells.unfit(cell, candidates)), f"{cell}: {found}"


if __name__ == "__main__":
    main()
