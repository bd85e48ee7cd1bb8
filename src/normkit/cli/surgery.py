"""``normkit surgery``: edit the norms of a model, with a certificate."""

from __future__ import annotations

import contextlib
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from normkit.surgery import Certificate

__all__ = ["surgery"]


@click.command()
@click.argument("name", required=False)
@click.argument("target", required=False)
@click.option("--out", metavar="FOLDER", help="Where the new model goes, with its certificate.")
@click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing.")
@click.option("--batch", metavar="M:F", help="What the model reads: my_pkg.data:one_batch.  [a random batch]")
@click.option(
    "--tied",
    type=click.Choice(["untie", "refuse"]),
    help="A head that shares its weight with the embedding gets its own, or what needs that is left.",
)
@click.option("--alpha", type=float, help="equalise-gains: 1 makes channels alike, 0 columns.  [0.5]")
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as JSON.")
@click.option("--check", metavar="FOLDER", help="Is the model in this folder what its certificate says?")
@click.option("--original", metavar="FOLDER", help="With --check: compare it with what it was made from.")
def surgery(
    name: str | None,
    target: str | None,
    out: str | None,
    dry_run: bool,
    batch: str | None,
    as_json: bool,
    check: str | None,
    original: str | None,
    **options: Any,
) -> None:
    """Edit the norms of a trained model, with a certificate.

    NAME is a surgery (without one, they are listed), TARGET a folder of Hugging Face's. The new folder is
    loaded by the same classes, and holds surgery.json. TARGET may be package.module:attribute, too, for a dry
    run. Exit code 0: done; 1: --check found a difference; 2: it cannot be done.
    """
    from normkit.cli.fields import refuse_empty
    from normkit.errors import user_error

    refuse_empty({"out": out, "batch": batch, "check": check, "original": original, "TARGET": target})
    if check is not None:
        _check(check, original)
        return
    if original is not None:
        raise user_error("--original is for --check.", fix="normkit surgery --check NEW --original OLD")
    if name is None:
        _list()
        return
    if target is None or (out is None and not dry_run):
        shown = target or "FOLDER"
        raise user_error(
            "no model was named." if target is None else "there is no --out.",
            expected=f"normkit surgery {name} {shown} --out NEW_FOLDER, or --dry-run",
        )
    if out is not None and dry_run:
        raise user_error("--out and --dry-run were both given.", expected="one of them")
    given = {k: v for k, v in options.items() if v is not None}
    certificate, notes = _operate(name, target, out, batch, given)
    if as_json:
        click.echo(certificate.to_json())
        return
    _show(certificate, notes)
    if out is not None and certificate.edits:
        click.echo(f"wrote {out}")


def _operate(
    name: str, target: str, out: str | None, batch: str | None, options: dict[str, Any]
) -> tuple[Certificate, list[str]]:
    """What others print on the way goes to stderr."""
    from normkit.cli.spinner import spinner

    with contextlib.redirect_stdout(sys.stderr), spinner() as show:
        show("loading torch")
        from normkit.errors import user_error
        from normkit.loading.target import load_batch, load_model
        from normkit.surgery.folder import operate_on_folder
        from normkit.surgery.operating import progress
        from normkit.surgery.table import surgery_of

        found = surgery_of(name)
        taken = inspect.signature(found.operate).parameters
        for option in options:
            if option not in taken:
                raise user_error(f"{name} has no --{option}.")
        if name.replace("-", "_") == "recalibrate_bn" and batch is None:
            raise user_error(
                "recalibrate-bn measures on data.", fix="--batch my_pkg.data:batches, a list of batches."
            )
        notes: list[str] = []
        with progress(show):
            given = load_batch(batch) if batch is not None else None
            path = Path(target).expanduser()
            if path.exists():
                where = Path(out).expanduser() if out is not None else None
                return operate_on_folder(found, path, where, given, notes, **options), notes
            model = load_model(target, notes)
            if out is not None:
                raise user_error(
                    f"{target} is a model in Python, and --out writes folders of Hugging Face's.",
                    fix=f"normkit.surgery.{found.name}(model, batch), or --dry-run.",
                )
            return found.operate(model, given, dry_run=True, **options), notes


def _show(certificate: Certificate, notes: list[str]) -> None:
    from rich.text import Text

    from normkit.lab.console import plain_console, visible

    console = plain_console()
    for note in notes:
        console.print(visible(note), soft_wrap=True)
    for k, line in enumerate(str(certificate).splitlines()):
        text = Text(visible(line))
        if k == 0:
            text.stylize("bold green" if certificate.certified else "bold yellow")
        console.print(text, soft_wrap=True)


def _list() -> None:
    from rich.table import Table

    from normkit.lab.console import plain_console
    from normkit.surgery.table import SURGERIES

    console = plain_console()
    table = Table("surgery", "function", "folder", "what it does", box=None, pad_edge=False, padding=(0, 1))
    for name, found in SURGERIES.items():
        function = "the same" if found.exact else "another"
        table.add_row(
            name.replace("_", "-"), function, "yes" if found.in_files is not None else "-", found.what
        )
    console.print(table)
    console.print(
        "\nnormkit surgery NAME FOLDER --out NEW_FOLDER; in Python: normkit.surgery.NAME(model, batch)."
    )


def _check(folder: str, original: str | None) -> None:
    from normkit.cli.spinner import spinner

    with contextlib.redirect_stdout(sys.stderr), spinner() as show:
        show("loading torch")
        from normkit.surgery.folder import check_folder
        from normkit.surgery.operating import progress

        notes: list[str] = []
        with progress(show):
            found = check_folder(
                Path(folder).expanduser(), Path(original).expanduser() if original else None, notes
            )
    for made in found.certificates:
        error = f", error {made['error']:.1g}" if made["error"] is not None else ""
        click.echo(
            f"{made['surgery']}: {len(made['tensors'])} tensors, normkit {made['versions']['normkit']}{error}"
        )
    if found.changed:
        click.echo(f"NOT what the certificate says: {', '.join(found.changed[:6])}")
    else:
        click.echo("The weights are those of the certificate.")
    if found.same_original is not None:
        words = "is" if found.same_original else "is NOT"
        click.echo(f"{original} {words} what it was made from; outputs differ by {found.difference:.2g}.")
    click.get_current_context().exit(0 if found.ok else 1)
