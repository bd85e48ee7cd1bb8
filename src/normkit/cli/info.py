"""``normkit info``: what is installed here, and what computes each norm."""

from __future__ import annotations

import json
import platform
from typing import Any

import click

from normkit._version import __version__

__all__ = ["info"]

DTYPES = ("float32", "float64", "bfloat16", "float16")
SHAPE = (2, 8, 16)
LEGEND = """cpu: our C++ kernels, exact
aten: torch's own operators, which round as torch does
reference: plain torch operations, exact"""
FIX = "install a C++17 compiler (g++) and torch 2.10 or later, then normkit again"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print it for machines.")
def info(as_json: bool) -> None:
    """Show versions, and what computes each norm here."""
    found = facts()
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        show(found)


def facts() -> dict[str, Any]:
    """All that there is to say, as plain data."""
    import torch

    from normkit import kernels
    from normkit.lab import machine

    backends: dict[str, dict[str, str]] = {}
    for dtype in DTYPES:
        x = torch.ones(SHAPE, dtype=getattr(torch, dtype), device="cpu")
        for op, (backend, _) in kernels.choices(x).items():
            backends.setdefault(op, {})[dtype] = backend
    return {
        "normkit": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": platform.platform(),
        "cpu": machine.cpu(),
        "threads": torch.get_num_threads(),
        "isa": kernels.isa(),
        "kernels_missing": kernels.missing(),
        "extension_missing": kernels.extension_missing(),
        "gpus": kernels.gpus(),
        "backends": backends,
    }


def show(found: dict[str, Any]) -> None:
    """Two tables that fit 80 columns."""
    from rich.table import Table

    from normkit.lab.console import plain_console

    console = plain_console()
    missing = found["kernels_missing"]
    rows = {name: str(found[name]) for name in ("normkit", "python", "torch", "system", "cpu", "threads")}
    rows["kernels"] = f"none: {missing}" if missing else f"C++, {found['isa']} instructions"
    for name, reason in found["gpus"].items():
        rows[name] = (
            f"torch's own operators: {reason}" if reason else "Triton kernels, checked on this device"
        )
    if missing:
        rows["fix"] = FIX
    elif found["extension_missing"]:
        rows["small calls"] = f"slower than they could be: {found['extension_missing']}"
    versions = Table.grid(padding=(0, 2))
    for row in rows.items():
        versions.add_row(*row)
    console.print(versions)

    table = Table("op", *DTYPES, box=None, pad_edge=False, padding=(0, 1))
    for op, chosen in found["backends"].items():
        table.add_row(op, *(chosen[dtype] for dtype in DTYPES))
    console.print(f"\nWhat computes a tensor of shape {SHAPE}:\n")
    console.print(table)
    console.print(f"\n{LEGEND}")
