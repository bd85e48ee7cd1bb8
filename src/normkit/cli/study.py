"""``normkit study``: put what people believe about normalization to the test."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

    from normkit.lab.studying import StudyResult

__all__ = ["study"]

FOLDER = "runs/studies"


@click.command()
@click.argument("names", nargs=-1, metavar="[STUDY]…")
@click.option("--all", "every", is_flag=True, help="Run all of them.")
@click.option("--quick", is_flag=True, help="A smoke run, without verdicts.")
@click.option("--verify", "again", is_flag=True, help="Run the cheap ones again and compare verdicts.")
@click.option("--ledger", "as_ledger", is_flag=True, help="Show all claims and what decides them.")
@click.option("--page", "as_page", is_flag=True, help="Write the page of the results that come with normkit.")
@click.option("--json", "as_json", is_flag=True, help="Print the list or the ledger for machines.")
@click.option("--seeds", type=int, help="How many; three are needed for a verdict.  [as the study asks]")
@click.option("--out", help=f"The folder of the results.  [{FOLDER}]")
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
    as_page: bool,
    as_json: bool,
    out: str | None,
    save: str | None,
    **options: Any,
) -> None:
    """Run studies, and judge by rules that were written down before.

    Without a name: the list, with the verdicts of the run that comes with normkit. The page is
    FOLDER/report.html.
    """
    from normkit.errors import refusal
    from normkit.lab.studies.base import all_studies, find_study

    for name in names:
        find_study(name)
    if every and names:
        raise refusal(f"--all came with {', '.join(names)}.", expected="--all, or names")
    if again and (quick or options["seeds"]):
        raise refusal("--verify came with --quick or --seeds.", expected="the same run as the stored one")
    if as_ledger:
        _ledger(names, as_json)
        return
    if as_page:
        _page(Path(out or FOLDER))
        return
    if every:
        names = tuple(all_studies())
    elif again:
        names = names or tuple(name for name, found in all_studies().items() if found.cheap)
    if names:
        if as_json:
            raise refusal("--json came with a run.", fix="--save FOLDER writes the rows as JSON.")
        folder = _writable(save, quick)
        if again:
            _verify(names, out, options)
        else:
            _run(names, quick, Path(out or FOLDER), folder, options)
        return
    if quick or save or options["seeds"]:
        raise refusal("No study was named.", expected="a name, or --all", fix="normkit study lists them.")
    _list(as_json)


def _writable(save: str | None, quick: bool) -> Path | None:
    """The folder for the rows, made before hours of work and not after."""
    from normkit.errors import refusal

    if save is None:
        return None
    if quick:
        raise refusal("--save came with --quick.", expected="a full run; a smoke run says nothing")
    folder = Path(save)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".normkit").touch()
        (folder / ".normkit").unlink()
    except OSError as error:
        raise refusal(
            f"--save got {save}: {error.strerror}.", expected="a folder that can be written"
        ) from None
    return folder


def _run(names: tuple[str, ...], quick: bool, out: Path, save: Path | None, options: dict[str, Any]) -> None:
    from normkit.lab import studying
    from normkit.lab.page.studies import write_studies

    found = studying.study(*names, quick=quick, out=out, **options)
    results = found if isinstance(found, list) else [found]
    for result in results:
        _show(result)
        if save is not None:
            result.save(save)
    page = write_studies({r.name: r for r in results}, out / "report.html")
    click.echo(f"\npage  {page}")


def _verify(names: tuple[str, ...], out: str | None, options: dict[str, Any]) -> None:
    """In a folder of its own, so that everything is measured again."""
    import tempfile

    from normkit.lab import studying

    with tempfile.TemporaryDirectory() as new:
        found = studying.study(*names, out=out or new, **options)
    results = found if isinstance(found, list) else [found]
    differences = studying.verify(results)
    click.echo("\n".join(differences) or f"\nAll verdicts of {len(results)} studies are as before.")
    if differences:
        click.get_current_context().exit(1)


def _page(out: Path) -> None:
    from normkit.lab.page.studies import write_studies
    from normkit.lab.studying import committed

    click.echo(f"page  {write_studies(committed(), out / 'report.html')}")


def _show(result: StudyResult) -> None:
    from rich.markup import escape

    table = _table("rule", "measured (95 %)", "verdict")
    for rule in result.study.rules:
        ruling = result.rulings[rule.name]
        says = escape(rule.says) + (" [dim](beside the hypothesis)[/dim]" if rule.aside else "")
        table.add_row(says, ruling.effect.say(rule.unit), "–" if result.quick else ruling.verdict)
    _print(f"\n[bold]{result.name}: {result.verdict}[/bold]\n{escape(result.study.words['Question'])}", table)


def _list(as_json: bool) -> None:
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
    table = _table("study", "question", "hypothesis")
    for row in rows:
        table.add_row(row["name"], row["title"], row["verdict"])
    _print(table, "\nnormkit study NAME runs one, --all all of them, --ledger shows what they decide.")


def _ledger(names: tuple[str, ...], as_json: bool) -> None:
    from rich.markup import escape

    from normkit.lab.claims import VERDICTS, ledger

    rows = [row for row in ledger() if not names or row["study"].partition(".")[0] in names]
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = _table("#", "claim", "verdict")
    for row in rows:
        evidence = f"{row['study']}: {row['measured']}" if row["study"] else row["test"] or row["paper"]
        unexpected = f"We had expected {row['expected']}. {row['why']}" if row["why"] else ""
        below = [escape(line) for line in (row["correction"], unexpected, evidence) if line]
        text = "\n".join([escape(row["claim"]), *(f"[dim]{line}[/dim]" for line in below)])
        table.add_row(str(row["number"]), text, row["verdict"])
    count = Counter(row["verdict"] for row in rows)
    _print(table, "\n" + ", ".join(f"{count[verdict]} {verdict}" for verdict in VERDICTS))


def _table(*columns: str) -> Table:
    from rich.table import Table

    return Table(*columns, box=None, pad_edge=False, padding=(0, 1))


def _print(*things: Any) -> None:
    from rich.console import Console

    Console(highlight=False).print(*things, sep="\n")
