"""``normkit study``: put what people believe about normalization to the test."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from rich.table import Table

    from normkit.lab.study_result import StudyResult

__all__ = ["study"]

_HOW = ("engine", "address", "workers")
_RUN = ("long", "quick", "seeds", "out", "save", *_HOW)
# What is asked for -> the options that mean something with it.
_TAKES = {
    "ledger": ("names", "json"),
    "page": ("out",),
    "verify": ("names", *_HOW),
    "all": _RUN,
    "names": _RUN,
    "list": ("json",),
}


@click.command()
@click.argument("names", nargs=-1, metavar="[STUDY]…")
@click.option("--all", is_flag=True, help="Run all of them.")
@click.option("--long", is_flag=True, help="Those that take hours, too. They go on where they were stopped.")
@click.option("--quick", is_flag=True, help="A smoke run, without verdicts.")
@click.option("--verify", is_flag=True, help="Run the cheap ones again and compare verdicts.")
@click.option("--ledger", is_flag=True, help="Show all claims and what decides them.")
@click.option("--page", is_flag=True, help="Write the page of the results that come with normkit.")
@click.option("--json", "as_json", is_flag=True, help="Print the list or the ledger for machines.")
@click.option("--seeds", type=int, help="How many; with fewer than the study asks for there is no verdict.")
@click.option("--out", help="The folder of the results.  [runs/studies]")
@click.option("--save", help="Also write the rows to this folder, as JSON.")
@click.option("--engine", default="local", help="local or ray.  [local]")
@click.option("--address", help="Of a Ray cluster: auto, host:port.")
@click.option("--workers", type=int, help="Cells at a time.  [one a core]")
def study(
    names: tuple[str, ...],
    long: bool,
    quick: bool,
    as_json: bool,
    out: str | None,
    save: str | None,
    seeds: int | None,
    engine: str,
    address: str | None,
    workers: int | None,
    **_asked_for: bool,
) -> None:
    """Run studies, and judge by rules that were written down before.

    Without a name: the list, with the verdicts of the run that comes with normkit. The page is
    FOLDER/report.html; it has all studies of that folder.
    """
    from normkit.lab.design import all_studies, find_study
    from normkit.lab.studying import FOLDER

    for name in names:
        find_study(name)
    options = {"seeds": seeds, "engine": engine, "address": address, "workers": workers}
    asked = _asked()
    if asked == "ledger":
        _ledger(names, as_json)
    elif asked == "page":
        _page(Path(out or FOLDER))
    elif asked == "list":
        _list(as_json)
    elif asked == "verify":
        _verify(names or tuple(name for name, found in all_studies().items() if found.cheap), options)
    else:
        chosen = _chosen(names, long=long, quick=quick)
        _run(chosen, quick, Path(out or FOLDER), _writable(save, quick), options)


def _chosen(names: tuple[str, ...], *, long: bool, quick: bool) -> tuple[str, ...]:
    """Those that take hours are run only if that is said."""
    from normkit.errors import user_error
    from normkit.lab.design import all_studies

    minutes = {name: found.minutes for name, found in all_studies().items() if found.minutes is not None}
    if not names:
        return tuple(name for name in all_studies() if long or quick or name not in minutes)
    for name in names:
        if name in minutes and not (long or quick):
            raise user_error(
                f"{name} takes about {minutes[name]} minutes of one core.",
                expected="--long beside it, or --quick for a smoke run",
                fix=f"normkit study {name} --long; if it is stopped, the same command goes on.",
            )
    return names


def _asked() -> str:
    """What the command line asks for; an option that means nothing with it is refused."""
    from normkit.errors import user_error

    context = click.get_current_context()
    typed = {
        parameter.opts[0].removeprefix("--")
        for parameter in context.command.params
        if context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        and context.params[str(parameter.name)]
    }
    asked = next((name for name in _TAKES if name in typed), "list")
    beside = sorted(typed - {asked, *_TAKES[asked]})
    if beside and asked == "list":
        raise user_error("No study was named.", expected="a name, or --all", fix="normkit study lists them.")
    if beside:
        took = [_spelt(name) for name in _TAKES[asked]]
        raise user_error(
            f"{_spelt(asked)} came with {', '.join(map(_spelt, beside))}.",
            expected=f"nothing, or {', '.join(took)}",
        )
    return asked


def _spelt(name: str) -> str:
    return "a name" if name == "names" else f"--{name}"


def _writable(save: str | None, quick: bool) -> Path | None:
    """The folder for the rows, made before hours of work and not after."""
    from normkit.errors import user_error

    if save is None:
        return None
    if quick:
        raise user_error("--save came with --quick.", expected="a full run; a smoke run says nothing")
    folder = Path(save)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".normkit").touch()
        (folder / ".normkit").unlink()
    except OSError as error:
        raise user_error(
            f"--save got {save}: {error.strerror}.", expected="a folder that can be written"
        ) from None
    return folder


def _run(names: tuple[str, ...], quick: bool, out: Path, save: Path | None, options: dict[str, Any]) -> None:
    from normkit.lab import studying
    from normkit.lab.page.studies import write_studies

    found = studying.study(*names, quick=quick, out=out, save=save, **options)
    results = found if isinstance(found, list) else [found]
    for result in results:
        _show(result)
    stored = studying.stored_studies(out) | {r.name: r for r in results if not quick}
    page = write_studies(stored, out / "report.html")
    is_other = quick and not all(result.quick for result in stored.values())
    click.echo(f"\npage  {page}{', of full runs: a smoke run is not put beside them' if is_other else ''}")


def _verify(names: tuple[str, ...], options: dict[str, Any]) -> None:
    """In a folder of its own, so that everything is measured again."""
    import tempfile

    from normkit.lab import studying

    with tempfile.TemporaryDirectory() as new:
        found = studying.study(*names, out=new, **options)
    results = found if isinstance(found, list) else [found]
    differences = studying.verify(results)
    click.echo("\n".join(differences) or f"\nAll verdicts of {len(results)} studies are as before.")
    if differences:
        click.get_current_context().exit(1)


def _page(out: Path) -> None:
    from normkit.lab.page.studies import write_studies
    from normkit.lab.study_result import committed

    click.echo(f"page  {write_studies(committed(), out / 'report.html', whole=True)}")


def _show(result: StudyResult) -> None:
    from rich.text import Text

    table = _table("rule", "measured (95 %)", "verdict")
    for ruling in result.rulings.values():
        rule = ruling.rule
        says = Text.assemble(rule.says, (" (beside the hypothesis)" if rule.aside else "", "dim"))
        table.add_row(says, ruling.said, "–" if result.quick else ruling.verdict)
    question, answer = result.study.words["Question"], "" if result.quick else result.answer
    _print(Text(f"\n{result.name}", "bold"), question, *([Text(answer, "bold")] if answer else []), table)
    _print(Text(f"The hypothesis: {result.verdict}"))


def _list(as_json: bool) -> None:
    from normkit.lab.design import all_studies
    from normkit.lab.study_result import committed

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
    from rich.text import Text

    from normkit.lab.claims import KINDS, VERDICTS, ledger

    rows = [row for row in ledger() if not names or row["study"].partition(".")[0] in names]
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = _table("#", "claim", "verdict")
    for row in rows:
        kind = row["kind"] + (", a tautology" if row["tautology"] else "")
        evidence = ", ".join(part for part in (f"{kind}: {row['evidence']}", row["scale"]) if part)
        literature = f"Literature: {row['literature']}" if row["literature"] else ""
        unexpected = f"We had expected {row['expected']}. {row['why']}" if row["why"] else ""
        lines = (row["quote"], row["correction"], unexpected, literature, row["mended"], evidence)
        below = [line for line in lines if line]
        text = Text.assemble(row["claim"], *((f"\n{line}", "dim") for line in below))
        table.add_row(str(row["number"]), text, row["verdict"])
    counts = _table("", *VERDICTS)
    for kind, says in KINDS.items():
        count = Counter(row["verdict"] for row in rows if row["kind"] == kind)
        counts.add_row(f"{kind} ({says})", *(str(count[verdict] or "") for verdict in VERDICTS))
    count = Counter(row["verdict"] for row in rows)
    counts.add_row("all", *(str(count[verdict]) for verdict in VERDICTS))
    _print(table, "", counts)


def _table(*columns: str) -> Table:
    from rich.table import Table

    return Table(*columns, box=None, pad_edge=False, padding=(0, 1))


def _print(*things: Any) -> None:
    from normkit.lab.console import plain_console

    plain_console().print(*things, sep="\n")
