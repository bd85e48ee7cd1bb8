"""``normkit study``: put what people believe about normalization to the test."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from normkit.lab.studying import StudyResult

__all__ = ["study"]


@click.command()
@click.argument("names", nargs=-1, metavar="[STUDY]…")
@click.option("--all", "every", is_flag=True, help="Run all of them.")
@click.option("--quick", is_flag=True, help="A smoke run, without verdicts.")
@click.option("--verify", "again", is_flag=True, help="Run the cheap ones again and compare verdicts.")
@click.option("--ledger", "as_ledger", is_flag=True, help="Show all claims and what decides them.")
@click.option("--json", "as_json", is_flag=True, help="Print the list or the ledger for machines.")
@click.option("--seeds", type=int, help="How many; three are needed for a verdict.  [as the study asks]")
@click.option("--out", default="runs/studies", help="The folder of the results.  [runs/studies]")
@click.option("--save", help="Also write the rows to this folder, as JSON.")
@click.option("--engine", default="local", help="local or ray.  [local]")
@click.option("--address", help="Of a Ray cluster: auto, host:port.")
@click.option("--workers", type=int, help="Cells at a time.  [one a core]")
def study(
    names: tuple[str, ...],
    every: bool,
    quick: bool,
    again: bool,
    as_ledger: bool,
    as_json: bool,
    save: str | None,
    **options: Any,
) -> None:
    """Run studies, and judge by rules that were written down before.

    Without a name: the list, with the verdicts of the run that comes with normkit. The page is
    FOLDER/report.html.
    """
    from normkit.lab.studies.base import all_studies

    if as_ledger:
        _ledger(as_json)
        return
    if every:
        names = tuple(all_studies())
    elif again:
        names = names or tuple(name for name, found in all_studies().items() if found.cheap)
    if not names:
        _list(as_json)
        return
    _run(names, quick, again, save, options)


def _run(names: tuple[str, ...], quick: bool, again: bool, save: str | None, options: dict[str, Any]) -> None:
    from pathlib import Path

    from normkit.errors import refusal
    from normkit.lab import studying
    from normkit.lab.page.studies import write_studies

    found = studying.study(*names, quick=quick, **options)
    results = found if isinstance(found, list) else [found]
    for result in results:
        _show(result)
    page = write_studies({r.name: r for r in results}, Path(options["out"]) / "report.html")
    click.echo(f"\npage  {page}")
    if save is not None:
        if quick:
            raise refusal("--save came with --quick.", expected="a full run; a smoke run says nothing")
        Path(save).mkdir(parents=True, exist_ok=True)
        for result in results:
            result.save(Path(save))
    if again:
        differences = studying.verify(results)
        click.echo("\n".join(differences) or f"\nAll verdicts of {len(results)} studies are as before.")
        if differences:
            click.get_current_context().exit(1)


def _show(result: StudyResult) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"\n[bold]{result.name}: {result.verdict}[/bold]\n{result.study.words['Question']}")
    table = Table("rule", "measured (95 %)", "verdict", box=None, pad_edge=False, padding=(0, 1))
    for rule in result.study.rules:
        ruling = result.rulings[rule.name]
        says = rule.says + (" [dim](beside the hypothesis)[/dim]" if rule.aside else "")
        table.add_row(says, ruling.effect.say(rule.unit), "–" if result.quick else ruling.verdict)
    console.print(table)


def _list(as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from normkit.lab.studies.base import all_studies
    from normkit.lab.studying import committed

    known = committed()
    rows = [
        {"name": name, "title": found.words["Title"], "verdict": known[name].verdict if name in known else ""}
        for name, found in all_studies().items()
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("study", "question", "hypothesis", box=None, pad_edge=False, padding=(0, 1))
    for row in rows:
        table.add_row(row["name"], row["title"], row["verdict"])
    console = Console(highlight=False)
    console.print(table)
    console.print("\nnormkit study NAME runs one, --all all of them, --ledger shows what they decide.")


def _ledger(as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from normkit.lab.claims import ledger

    rows = ledger()
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table("#", "claim", "verdict", "measured", box=None, pad_edge=False, padding=(0, 1))
    for row in rows:
        expected = f"We had expected {row['expected']}. {row['why']}" if row["why"] else ""
        text = "\n".join(
            [row["claim"], *(f"[dim]{more}[/dim]" for more in (row["correction"], expected) if more)]
        )
        table.add_row(str(row["number"]), text, row["verdict"], row["measured"])
    Console(highlight=False).print(table)
