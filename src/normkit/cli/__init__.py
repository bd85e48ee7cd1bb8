"""The command ``normkit``: one thin file a verb, which imports what it needs when it runs.

So ``normkit --help`` answers before torch would have been loaded.
"""

from __future__ import annotations

import difflib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from normkit._version import __version__
from normkit.cli.bench import bench
from normkit.cli.compare import compare
from normkit.cli.doctor import doctor
from normkit.cli.info import info
from normkit.cli.report import report
from normkit.cli.study import study
from normkit.cli.surgery import surgery
from normkit.cli.train import train
from normkit.cli.verify import verify
from normkit.errors import NormkitError, user_error
from normkit.lab.allocator import keep_memory

__all__ = ["command", "main"]


class _Verbs(click.Group):
    """An unknown verb is answered with the list, and the closest match."""

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        found = super().get_command(context, name)
        if found is None and not context.resilient_parsing and not name.startswith("-"):
            close = difflib.get_close_matches(name, self.commands, n=1)
            raise user_error(
                f"normkit has no command {name!r}.",
                expected=f"one of {', '.join(sorted(self.commands))}",
                fix=f"normkit {close[0] if close else '--help'}",
            )
        return found


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="normkit %(version)s")
def command() -> None:
    """The normalization toolkit for PyTorch."""


for _verb in (compare, train, report, study, doctor, surgery, verify, bench, info):
    command.add_command(_verb)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. A user's mistake is said in plain words and exits with 2; Ctrl-C exits with 130, as
    does SIGTERM, by which systems and schedulers end a process."""
    interrupted = False
    if arguments is None:  # the process is ours
        keep_memory()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # what it cannot write, it spells
                stream.reconfigure(errors="backslashreplace")

    def interrupt(*_: Any) -> None:
        nonlocal interrupted
        interrupted = True
        if arguments is None and _is_loading("torch"):  # which swallows it, and nothing has begun
            os.write(2, b"normkit: interrupted\n")
            os._exit(130)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        typed = sys.argv[1:] if arguments is None else arguments
        code = command.main(typed, prog_name="normkit", standalone_mode=False, obj=list(typed))
    except NormkitError as error:
        from normkit.lab.console import visible

        click.echo(visible(str(error)), err=True)
        code = 2
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        interrupted = True
    except Exception:  # torch's imports swallow an interrupt, and fail over its consequences
        if not interrupted:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if interrupted:
        click.echo("normkit: interrupted", err=True)
        code = 130
    sys.exit(code)


def _is_loading(name: str) -> bool:
    """Is the import of a module going on?"""
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))
