"""``normkit report``: the page or the rows of a comparison again, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from normkit.errors import NormkitError

__all__ = ["report"]


@click.command()
@click.argument("folder")
@click.option("--json", is_flag=True, help="Print the runs as JSON.")
@click.option("--csv", is_flag=True, help="Print the runs as CSV.")
@click.option("--parquet", is_flag=True, help="Write FOLDER/runs.parquet.")
@click.option("--tensorboard", is_flag=True, help="Write FOLDER/tensorboard.")
def report(folder: str, **forms: bool) -> None:
    """Write the page of a comparison again, or export its runs.

    FOLDER is that of  normkit compare, or of  normkit study, which has a page only. A sweep that is still
    going on, or was stopped, is read as far as it has come.
    """
    from normkit.errors import user_error
    from normkit.lab import export
    from normkit.lab.comparison import Comparison, unreadable

    chosen = [name for name, wanted in forms.items() if wanted]
    if len(chosen) > 1:
        raise user_error(f"--{chosen[0]} came with --{chosen[1]}.", expected="one of them")
    form = chosen[0] if chosen else None
    if _has_studies(Path(folder)):
        _show_studies(folder, form)
        return
    result = Comparison.load(folder)
    if form is None:
        from normkit.cli.compare import show, show_page

        show(result)  # first: a disk may have no room for the page
        show_page(result.save())
    else:
        if result.unread:
            click.echo(unreadable(result.unread), err=True)
        click.echo(export.FORMS[form](result))


def _has_studies(folder: Path) -> bool:
    """Is it a folder of studies, and not of a comparison? One of neither is refused."""
    from normkit.errors import user_error
    from normkit.lab.store import FILE, Store

    try:
        if not (folder / FILE).is_file():
            raise _no_runs(folder)
        with (folder / FILE).open("rb"):
            pass
    except OSError as error:
        raise user_error(
            f"{folder} cannot be read: {error.strerror}.",
            expected="the folder of a comparison, and the right to read it",
        ) from error
    with Store(folder) as store:
        return "studies" in store.latest()[0]


def _no_runs(folder: Path) -> NormkitError:
    """Why there is nothing to report, and what to type instead."""
    from normkit.errors import user_error
    from normkit.lab.single import CHECKPOINT, RESULT
    from normkit.lab.store import FILE

    expected = "the folder of a comparison"
    if not folder.exists():
        why, fix = "there is no such folder", "normkit compare --out …"
    elif not folder.is_dir():
        beside = (folder.parent / FILE).is_file()
        why, fix = "it is a file", f"normkit report {folder.parent}" if beside else "name a folder."
    elif (folder / RESULT).exists() or (folder / CHECKPOINT).exists():
        why, fix = "it is a folder of  normkit train", f"what came out is in {folder / RESULT}."
    else:
        inside = sorted(path.parent for path in folder.glob(f"*/{FILE}"))
        why = "it has comparisons in folders of its own" if inside else "it has no comparison in it"
        fix = " or ".join(f"normkit report {path}" for path in inside[:3]) or "normkit compare --out …"
    return user_error(f"{folder} has no {FILE}: {why}.", expected=expected, fix=fix)


def _show_studies(folder: str, form: str | None) -> None:
    from normkit.errors import user_error
    from normkit.lab.page.studies import write_studies
    from normkit.lab.studying import stored_studies

    if form is not None:
        raise user_error(
            f"{folder} is a folder of studies, and --{form} is for comparisons.",
            expected="no such option: the page is written",
            fix=f"for the rows as JSON:  normkit study NAME --out {folder} --save FOLDER",
        )
    click.echo(f"page  {write_studies(stored_studies(folder), Path(folder) / 'report.html')}")
