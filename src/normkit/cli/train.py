"""``normkit train``: one run, on one process or under torchrun."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["train"]


@click.command()
@click.option(
    "--task", default="text", help="text, digits, lines, stream, series, or package.module:Class.  [text]"
)
@click.option("--data", help="A file, folder or glob of text.  [Python's own library]")
@click.option("--norm", default="rms", help="A norm.  [rms]")
@click.option("--placement", default="pre", help="A placement.  [pre]")
@click.option("--lr", default="3e-3", help="The learning rate.  [3e-3]")
@click.option("--depth", help="Layers.")
@click.option("--width", help="Features of the residual stream.")
@click.option("--batch-size", help="Rows a step, of all processes together.")
@click.option("--warmup", help="Steps in which the learning rate rises.")
@click.option("--steps", type=int, default=500, help="How long.  [500]")
@click.option("--device", help="cpu, cuda, cuda:1 or mps.  [cpu]")
@click.option("--schedule", default="cosine", help="constant or cosine.  [cosine]")
@click.option("--seed", type=int, default=0, help="Of the weights and the data's order.  [0]")
@click.option(
    "--set", "fields", multiple=True, metavar="FIELD=VALUE", help="A field of the task; repeatable."
)
@click.option("--out", default="runs/train", help="The folder of the results.  [runs/train]")
@click.option("--resume", is_flag=True, help="Go on from the checkpoint in the folder.")
@click.option("--every", type=int, default=100, help="Steps between checkpoints.  [100]")
@click.option("--bf16", is_flag=True, help="Autocast to bfloat16.")
@click.option("--compile", is_flag=True, help="torch.compile the model.")
@click.option("--shard", is_flag=True, help="Under torchrun: FSDP2 instead of DDP.")
def train(fields: tuple[str, ...], out: str, seed: int, **options: Any) -> None:
    """Train one model, with checkpoints.

    On several processes:  torchrun --nproc-per-node 2 -m normkit train …  gives the same loss curve as one
    process. Ctrl-C and SIGTERM keep a checkpoint; --resume goes on from it.
    """
    from normkit.cli.fields import refuse_empty, split_fields
    from normkit.errors import user_error
    from normkit.lab.plan import make_plan
    from normkit.lab.single import train as train_one

    refuse_empty({**options, "out": out})
    how = {name: options.pop(name) for name in ("resume", "every", "bf16", "compile", "shard")}
    given = split_fields(fields)
    plan = make_plan({**options, "seeds": [seed], "set": {**_first(options.get("task")), **given}})
    if len(plan.runs) != 1:
        raise user_error(
            f"normkit train got several values of {', '.join(plan.axes)}.",
            expected="one run",
            fix="normkit compare, for several.",
        )
    train_one(plan.runs[0], out, **how)


def _first(task: Any) -> dict[str, Any]:
    """Of what a comparison would vary by default, the first values."""
    from normkit.lab.task import task_class

    usual = task_class(task or "text").defaults.get("set", {})
    return {name: values[0] if isinstance(values, list | tuple) else values for name, values in usual.items()}
