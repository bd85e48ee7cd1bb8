"""``normkit verify``: are the norms right on a device of this machine?"""

from __future__ import annotations

import click

__all__ = ["verify"]


@click.command()
@click.option("--device", help="cpu, cuda, cuda:1, xpu, …  [the first GPU, or the CPU]")
@click.option(
    "--json", "json_path", metavar="PATH", help="Write device, versions and all results to this file."
)
@click.option("--quick", is_flag=True, help="Few sizes and means.")
def verify(device: str | None, json_path: str | None, quick: bool) -> None:
    """Check every norm on this machine against float64 on the CPU.

    Accuracy and gradients over sizes, means, dtypes and layouts; numbers that are hard; the same bits twice,
    and in any batch; memory. The file of --json is what we need to see if something fails. Exits with 1 then.
    Ctrl-C ends the checking, and keeps what was checked.
    """
    from normkit.bench import devices
    from normkit.bench.results import check_path, write
    from normkit.cli.bar import bar
    from normkit.cli.fields import refuse_empty
    from normkit.lab.console import plain_console
    from normkit.verify.running import verify as check_all
    from normkit.verify.table import LEGEND, failures, table

    refuse_empty({"device": device, "json": json_path})
    where, path = devices.find(device), check_path("--json", json_path)
    with bar("checking") as show:
        found = check_all(where, quick, show)
    console = plain_console()
    shown = ("device", "name", "kernels", "driver", "cpu", "isa", "torch", "triton", "normkit")
    for key in shown:
        if found.machine.get(key) is not None:
            console.print(f"{key:10}{found.machine[key]}")
    console.print()
    console.print(table(found.results))
    console.print(f"\n{LEGEND}\n")
    for line in failures(found.results):
        console.print(line)
    for note in dict.fromkeys(result.note for result in found.results if result.status == "skipped"):
        console.print(f"skipped: {note}")
    passed, failed = found.count("passed"), found.count("failed")
    if path is not None:
        head = {"passed": passed, "failed": failed, "left": found.left, "machine": found.machine}
        write(path, head, found.results)
        console.print(f"wrote {path}", soft_wrap=True)
    left = f"; stopped by Ctrl-C, {found.left} cases left" if found.left else ""
    console.print(f"{passed} passed, {failed} failed{left}")
    if failed or found.left:
        click.get_current_context().exit(1 if failed else 130)
