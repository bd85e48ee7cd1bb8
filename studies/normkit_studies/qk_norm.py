"""Does QK-norm keep attention logits small?

Question: At a learning rate that is too large, how large do the logits of attention become, with queries
and keys normalised and without? And is the output of attention large?

Hypothesis: Without QK-norm the largest logit is at least ten times as large. The output of attention is
never larger than its values, which is arithmetic: it is an average of them.

Method: Byte-level language model of 6 layers, Pre-LN, learning rate 3e-2, 120 steps. The largest q·k /
sqrt(D) over all layers, heads and held-out tokens. Largest number of the output of attention over that of
its values in the model so trained; and, untrained, the ratio of their spreads.

Refuted if: the ratio of the largest logits is below ten, or the output is larger than the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from normkit.lab.design import Plot, Rule, Study, grid
from normkit.lab.run import Run
from normkit.lab.tasks.text import TextTask
from normkit.lab.training import Training


class _Watch(TorchFunctionMode):
    """Looks on while attention is computed, and takes notes."""

    def __init__(self) -> None:
        super().__init__()
        self.logit = self.output = self.spread = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        y = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            query, key, value = args
            logits = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
            seen = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
            self.logit = max(self.logit, logits[..., seen].abs().max().item())
            self.output = max(self.output, (y.abs().amax() / value.abs().amax()).item())
            self.spread = max(self.spread, (y.std() / value.std()).item())
        return y


@torch.no_grad()
def _look(model: nn.Module, task: TextTask) -> _Watch:
    with _Watch() as watch:
        task.loss(model, task.held_out()[0])
    assert watch.logit > 0
    return watch


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    task = TextTask(qk_norm=cell["qk_norm"])
    made = Run(
        options=(("qk_norm", cell["qk_norm"]),),
        lr=cell["lr"],
        depth=cell["depth"],
        steps=cell["steps"],
        seed=cell["seed"],
    )
    training = Training(made, task)
    before = _look(training.model, task)
    while training.step < cell["steps"]:
        training.advance()
    after = _look(training.model, task)
    return {
        "logit": after.logit,
        "output": after.output,
        "spread": before.spread,
        "loss": training.evaluate(),
    }


STUDY = Study(
    claims=(31,),
    cells=grid(qk_norm=[False, True], lr=[3e-2], depth=[6], steps=[120]),
    quick_cells=grid(qk_norm=[False, True], lr=[3e-2], depth=[1], steps=[3]),
    measure=run,
    rules=(
        Rule(
            "logit",
            "Without QK-norm the largest logit is at least ten times as large",
            lambda r: r.get("logit", qk_norm=False) / r.get("logit", qk_norm=True),
            above=10,
            unit="times",
            log=True,
        ),
        Rule(
            "output",
            "The output of attention is not larger than its values",
            lambda r: r.get("output", qk_norm=False),
            below=1.0001,
            unit="of the largest value",
        ),
        Rule(
            "spread",
            "It is less spread than its values",
            lambda r: r.get("spread", qk_norm=False),
            below=0.9,
            unit="of their spread",
            aside=True,
        ),
    ),
    plots=(
        Plot(
            "qk_norm",
            "logit",
            None,
            "The largest logit of attention after 120 steps at a learning rate of 3e-2.",
            kind="bar",
            log_y=True,
            x_title="QK-norm",
            y_title="largest logit",
        ),
    ),
)
