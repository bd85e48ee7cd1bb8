"""``normkit doctor``: what is wrong with the norms of a model."""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from torch import nn

    from normkit.doctor import Report

__all__ = ["doctor"]

STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}


@click.command()
@click.argument("target", required=False)
@click.option("--batch", metavar="M:F", help="What the model reads: my_pkg.data:one_batch.  [a random batch]")
@click.option(
    "--reference", metavar="TARGET", help="A model that should compute the same: find what differs."
)
@click.option("--train/--eval", "training", default=None, help="The mode to run it in.  [as it is]")
@click.option("--select", multiple=True, metavar="CODES", help="Only rules that begin so: NK1,NK204.")
@click.option("--ignore", multiple=True, metavar="CODES", help="Leave out rules that begin so.")
@click.option("--fix", is_flag=True, help="Make the safe fixes, in memory, and say what they are.")
@click.option(
    "--json", "json_path", is_flag=False, flag_value="-", metavar="[FILE]", help="As JSON; - prints it."
)
@click.option("--html", metavar="FILE", help="As one page.")
@click.option(
    "--explain", is_flag=False, flag_value="all", metavar="[CODE]", help="Show a rule's page, or list all."
)
def doctor(
    target: str | None,
    explain: str | None,
    json_path: str | None,
    html: str | None,
    fix: bool,
    **options: Any,
) -> None:
    """Find what is wrong with the norms of a model.

    TARGET is package.module:attribute (a module, or a function without arguments that returns one), or a
    folder of Hugging Face's: config.json and safetensors, or the config alone. Exit code 0: healthy; 1: there
    are errors or warnings; 2: it could not be examined.
    """
    from normkit.cli.fields import refuse_empty
    from normkit.errors import user_error

    refuse_empty({**options, "json": json_path, "html": html, "explain": explain, "TARGET": target})
    if explain is not None:
        _explain(explain if target is None or explain != "all" else target)
        return
    if target is None:
        given = [
            value for value in (json_path, html, fix, *options.values()) if value not in (None, False, ())
        ]
        if given:
            fix_ = f"normkit doctor {json_path} --json -" if ":" in (json_path or "") else None
            raise user_error(
                "no model was named.", expected="package.module:attribute, or a folder", fix=fix_
            )
        _explain("all")
        return
    pages = [_writable("--json", json_path), _writable("--html", html)]
    report, fixes = _examine(target, fix, **options)
    if json_path == "-":
        found = json.loads(report.to_json()) | ({"fixes": fixes} if fix else {})
        click.echo(json.dumps(found, indent=2))
    else:
        _show(report, fixes if fix else None)
    for path in pages:
        if path is not None:
            click.echo(f"wrote {report.save(path)}", err=json_path == "-")
    click.get_current_context().exit(0 if report.ok else 1)


def _examine(
    target: str,
    fix: bool,
    *,
    batch: str | None,
    reference: str | None,
    training: bool | None,
    select: Sequence[str],
    ignore: Sequence[str],
) -> tuple[Report, list[str]]:
    """The report, and the fixes that were made. What others print on the way goes to stderr."""
    from normkit.cli.spinner import spinner

    with contextlib.redirect_stdout(sys.stderr), spinner() as show:
        show("loading torch")
        from normkit import doctor as examining
        from normkit.doctor.fixing import make_fixes
        from normkit.doctor.rules import rules_for
        from normkit.errors import NormkitError
        from normkit.loading.folder import with_random_weights
        from normkit.loading.target import load, load_model

        chosen: dict[str, Any] = {"select": ",".join(select), "ignore": ",".join(ignore)}
        rules_for(**chosen)  # a code that is none is refused before minutes of work
        notes: list[str] = []
        show(f"loading {target}")
        model, given = load(target, batch, notes)
        other = load_model(reference, notes) if reference is not None else None
        _set_mode(training, model, other)
        show(f"examining {type(model).__name__}")
        with _its_own_failures(model):
            try:
                report = examining(model, given, reference=other, **chosen)
            except NormkitError:
                made_up = with_random_weights(model)
                if made_up is None:
                    raise
                model = made_up
                notes.append("It cannot be run on the meta device: it was examined with random weights.")
                report = examining(model, given, reference=other, **chosen)
            fixes = make_fixes(report, given) if fix else []
            if fixes:
                report = examining(model, given, reference=other, **chosen)
        report.notes = (*notes, *report.notes)
        return report, fixes


def _set_mode(training: bool | None, *models: nn.Module | None) -> None:
    for model in models:
        if model is not None and training is not None:
            model.train(training)


@contextlib.contextmanager
def _its_own_failures(model: nn.Module) -> Iterator[None]:
    """What is no error of the user's ends in one line, too, and never as if the model had been examined."""
    from normkit.errors import NormkitError, user_error

    try:
        yield
    except NormkitError:
        raise
    except SystemExit as error:
        raise user_error(f"{type(model).__name__} called sys.exit({error.code!r}) while it ran.") from error
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        at = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "?"
        raise user_error(
            f"the doctor failed on {type(model).__name__}: {type(error).__name__}: {error} ({at})",
            fix="that is a bug of normkit's: please report it; --ignore leaves the rule out.",
        ) from error


def _writable(option: str, path: str | None) -> Path | None:
    """Asked before minutes of work, and not after."""
    from normkit.errors import user_error

    if path is None or path == "-":
        return None
    found = Path(path)
    try:
        found.parent.mkdir(parents=True, exist_ok=True)
        if found.is_dir():
            raise IsADirectoryError(21, "Is a directory")
    except OSError as error:
        raise user_error(
            f"{option} got {path!r}: {error.strerror}.", expected="a file that can be written"
        ) from error
    return found


def _show(report: Report, fixes: Sequence[str] | None) -> None:
    """In the width of the terminal, severities in colour."""
    from rich.text import Text

    from normkit.lab.console import plain_console, visible

    console = plain_console()
    if fixes is not None:
        made = "Fixes, in memory; nothing on disk was changed:" if fixes else "There is no safe fix to make."
        left = ["", "What is left:"] if fixes else []
        console.print("\n".join([made, *(f"  {line}" for line in fixes), *left, ""]), soft_wrap=True)
    for line in report.text(console.width).splitlines():
        text = Text(visible(line))
        word = line.partition(" ")[0]
        if word in STYLES and " NK" in line:
            text.stylize(STYLES[word], 0, len(word))
        elif line == report.verdict:
            text.stylize("bold green" if report.ok else "bold red")
        console.print(text, soft_wrap=True)


def _explain(code: str) -> None:
    """The page of a rule; or all of them as a table."""
    from rich.table import Table

    from normkit.doctor.rules import RULES, rule_of
    from normkit.lab.console import plain_console

    console = plain_console()
    if code != "all":
        console.print(_paragraphs(rule_of(code).page, console.width), soft_wrap=True)
        return
    table = Table("code", "name", "severity", "finds", box=None, pad_edge=False, padding=(0, 1))
    for rule in RULES:
        table.add_row(rule.code, rule.name, rule.severity, rule.page.split("\n\n")[1].partition("\n")[0])
    console.print(table)
    console.print("\nnormkit doctor TARGET examines a model, --explain CODE shows the page of a rule.")


def _paragraphs(page: str, width: int) -> str:
    """Words in lines of so many columns; what is indented, which is code, stays."""
    found = []
    for paragraph in page.split("\n\n"):
        head, *rest = paragraph.split("\n")
        is_code = any(line.startswith(" ") for line in rest)
        found.append(paragraph if is_code else textwrap.fill(" ".join([head, *rest]), width))
    return "\n\n".join(found)
