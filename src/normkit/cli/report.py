"""``normkit report``: the page or the rows of a comparison again, without training."""

from __future__ import annotations

import click

__all__ = ["report"]


@click.command()
@click.argument("folder")
@click.option("--json", "form", flag_value="json", help="Print the runs as JSON.")
@click.option("--csv", "form", flag_value="csv", help="Print the runs as CSV.")
@click.option("--parquet", "form", flag_value="parquet", help="Write FOLDER/runs.parquet.")
@click.option("--tensorboard", "form", flag_value="tensorboard", help="Write FOLDER/tensorboard.")
def report(folder: str, form: str | None) -> None:
    """Write the page of a comparison again, or export its runs.

    FOLDER is that of  normkit compare. A sweep that is still going on, or was stopped, is read as far as it
    has come.
    """
    from normkit.lab import export
    from normkit.lab.comparison import Comparison, unreadable

    result = Comparison.load(folder)
    if form is None:
        from normkit.cli.compare import show, show_page

        show(result)  # first: a disk may have no room for the page
        show_page(result.save())
    else:
        if result.unread:
            click.echo(unreadable(result.unread), err=True)
        click.echo(export.FORMS[form](result))
