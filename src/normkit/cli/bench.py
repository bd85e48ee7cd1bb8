"""``normkit bench``: how fast the norms are on a device of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from normkit.bench.measuring import Measured

__all__ = ["bench"]


@click.command()
@click.option("--device", help="cpu, cuda, cuda:1, xpu, …  [the first GPU, or the CPU]")
@click.option("--json", "json_path", metavar="PATH", help="Write device, versions and all rows to this file.")
@click.option("--figure", metavar="PATH", help="Draw GB/s over D: .svg, .png, .pdf; needs matplotlib.")
@click.option("--quick", is_flag=True, help="A smoke run: few shapes, few rounds, nothing compiled.")
def bench(device: str | None, json_path: str | None, figure: str | None, quick: bool) -> None:
    """Measure GB/s on this machine, beside a copy, torch and others.

    Which are torch.compile, Liger and quack. Those take part that are installed and work here; the others are
    named with the reason. Ctrl-C ends the measuring, and keeps what was measured.
    """
    from normkit.bench import devices
    from normkit.bench import figure as drawing
    from normkit.bench.measuring import measure_grid
    from normkit.bench.results import check_path, write
    from normkit.cli.bar import bar
    from normkit.cli.fields import refuse_empty
    from normkit.errors import user_error

    refuse_empty({"device": device, "json": json_path, "figure": figure})
    where = devices.find(device)
    results, picture = check_path("--json", json_path), check_path("--figure", figure)
    if picture is not None and (reason := drawing.undrawable()):
        raise user_error("--figure needs matplotlib.", fix=reason)
    with bar("measuring") as show:
        found = measure_grid(where, quick, show)
    _show(found)
    if results is not None:
        head = {"run": found.label, "quick": quick, "machine": found.machine, "skipped": found.skipped}
        write(results, head, found.rows)
        click.echo(f"wrote {results}")
    title = f"{found.machine.get('name') or found.machine['cpu']}, torch {found.machine['torch']}"
    if picture is not None and drawing.draw(found.rows, picture, title, found.remark):
        click.echo(f"wrote {picture}")


def _show(found: Measured) -> None:
    """What it was measured on, the tables, and who is missing."""
    from normkit.bench.table import LEGEND, tables
    from normkit.lab.console import plain_console

    console = plain_console()
    for key, value in found.machine.items():
        if value is not None and key not in ("properties", "caches"):
            console.print(f"{key:26}{value}")
    for table in tables(found.rows):
        console.print()
        console.print(table)
    console.print(f"\n{LEGEND}")
    for what, reason in found.skipped.items():
        console.print(f"without {what}: {reason}")
    if found.remark:
        console.print(f"\n{found.remark.strip()}")
