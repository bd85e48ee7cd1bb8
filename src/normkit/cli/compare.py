"""``normkit compare``: train every combination, and write a page."""

from __future__ import annotations

import shlex
from typing import Any

import click

__all__ = ["compare"]


def _joined(_: Any, __: Any, values: tuple[str, ...]) -> str | None:
    """A flag that is given twice has both values."""
    return ",".join(values) if values else None


SEVERAL: dict[str, Any] = {"multiple": True, "callback": _joined}


@click.command()
@click.argument("settings", required=False, metavar="[SWEEP.TOML]")
@click.option("--task", help="text, digits, lines, stream, series, or package.module:Class.  [text]")
@click.option(
    "--data", help="Files of text: a file, folder or glob; for series a CSV or Parquet.  [built in]"
)
@click.option("--norm", **SEVERAL, help="Norms, with commas: layer,rms,batch,…")
@click.option("--placement", **SEVERAL, help="Placements, with commas: post,pre,peri,…")
@click.option("--lr", **SEVERAL, help="Learning rates, or a range first:last:count.")
@click.option("--seeds", help="How many seeds, or which, with commas.  [3]")
@click.option("--depth", **SEVERAL, help="Numbers of layers.")
@click.option("--width", **SEVERAL, help="Features of the residual stream.")
@click.option("--batch-size", **SEVERAL, help="Rows a step.")
@click.option("--warmup", **SEVERAL, help="Steps in which the learning rate rises.")
@click.option("--steps", type=int, help="Steps of a run.")
@click.option("--budget", metavar="TIME", help="A time instead of steps: 90s, 10m, 1h30m.")
@click.option("--device", help="cpu, cuda, cuda:1 or mps.  [cpu]")
@click.option("--schedule", help="constant or cosine.  [constant]")
@click.option(
    "--set", "fields", multiple=True, metavar="FIELD=VALUES", help="A field of the task; repeatable."
)
@click.option("--out", help="The folder of the results.  [runs/TASK]")
@click.option("--engine", default="local", help="local or ray.  [local]")
@click.option("--address", help="Of a Ray cluster: auto, host:port.")
@click.option("--workers", type=int, help="Runs at a time.  [one a core]")
@click.option("--limit", type=float, metavar="SECONDS", help="Stop a run that takes longer.  [none]")
@click.option("--prune", is_flag=True, help="Successive halving: short runs first.")
@click.option("--tensorboard", is_flag=True, help="Also write FOLDER/tensorboard.")
def compare(settings: str | None, fields: tuple[str, ...], tensorboard: bool, **options: Any) -> None:
    """Which norm, where, at which learning rate? Train and compare.

    Without arguments: a language model on the source of Python's own library, in four minutes at most on two
    cores. The same command again does only what is missing. The page is FOLDER/report.html.
    """
    from normkit.cli.fields import refuse_empty, split_fields
    from normkit.lab.plan import read_toml
    from normkit.lab.sweep import compare_settings

    refuse_empty({**options, "SWEEP.TOML": settings})
    given = read_toml(settings) if settings is not None else {}
    how = {name: options.pop(name) for name in ("out", "engine", "address", "workers", "limit", "prune")}
    typed = {name: value for name, value in options.items() if value is not None}
    for name, other in (("steps", "budget"), ("budget", "steps")):
        if name in typed and other not in typed:  # what is typed stands above the file
            given.pop(other, None)
    given |= typed
    if fields:
        given["set"] = {**dict(given.get("set", {})), **split_fields(fields)}
    if tensorboard:
        from normkit.lab.export import check_tensorboard

        check_tensorboard()
    words = click.get_current_context().obj or ["compare"]
    result = compare_settings(given, shlex.join(["normkit", *words]), **how)
    if tensorboard:
        from normkit.lab.export import to_tensorboard

        click.echo(f"tensorboard --logdir {to_tensorboard(result)}")
    show(result)
    show_page(result.folder / "report.html")
    if any(outcome.error is not None for _, outcome in result.results):
        click.get_current_context().exit(1)


def show(result: Any) -> None:
    """The answer, the arms, and what weakens it."""
    from rich.table import Table

    from normkit.lab.console import plain_console
    from normkit.lab.overview import overview

    console = plain_console()
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    titles, *rows = overview(result.summary)
    for title in titles:
        table.add_column(title, justify="left" if title == "arm" else "right")
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(table)
    console.print(f"\n{result.why}\n")
    if result.command is not None:
        console.print(f"To get an answer:  {result.command}\n", soft_wrap=True)
    for warning in result.warnings:
        console.print(warning)
    errors = [outcome.error for _, outcome in result.results if outcome.error]
    if errors:
        console.print(f"The first that failed:\n{errors[0].strip()}\n", soft_wrap=True)


def show_page(path: Any) -> None:
    """Where it is, once it is there."""
    from normkit.lab.console import plain_console

    plain_console().print(f"page  {path}", soft_wrap=True)
