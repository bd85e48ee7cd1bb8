"""``python -m fuzzing --cases 20000``: look for calls that break a promise, and print how to see them again.

Every failing case is one line, to be run again as ``python -m fuzzing --case SEED:INDEX``. What has been
done is kept in build/, and ``--resume`` goes on there. With TRITON_INTERPRET=1 in the environment the Triton
kernels are asked, interpreted, which takes seconds a case.
"""

from __future__ import annotations

import sys

import click
import torch
from rich.console import Console

from fuzzing.cases import draw
from fuzzing.judging import judge
from fuzzing.runner import fuzz, prepare


@click.command(help=__doc__)
@click.option("--cases", default=2000, show_default=True, help="How many.")
@click.option("--seed", default=0, show_default=True, help="Each seed has cases of its own.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--resume", is_flag=True, help="Leave out what is done already.")
@click.option("--case", "one", metavar="SEED:INDEX", help="Run one case and say everything about it.")
def main(cases: int, seed: int, jobs: int, resume: bool, one: str | None) -> None:
    console = Console()
    if one is None:
        sys.exit(1 if fuzz(seed, cases, jobs, resume=resume, console=console) else 0)
    prepare(torch.get_num_threads())
    case = draw(*map(int, one.split(":")))
    verdict = judge(case)
    console.print(str(case), markup=False, highlight=False, soft_wrap=True)
    for failure in verdict.failures:
        console.print(f"{failure.what}: {failure.detail.split(' | ')[0]}", markup=False, highlight=False)
    shares = ", ".join(f"{what} {share:.2g}" for what, share in verdict.worst.items())
    console.print(
        f"Share of each bound: {shares}" if shares else "Nothing else was measured.", highlight=False
    )
    sys.exit(1 if verdict.failures else 0)


if __name__ == "__main__":
    main()
