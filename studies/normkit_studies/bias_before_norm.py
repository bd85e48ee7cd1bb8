"""Does a Transformer need the biases right before its LayerNorms?

Question: What does it cost to train a Post-LN language model without the biases of the linear layers that
each LayerNorm follows, everything else being the same?

Hypothesis: Nothing that matters: the losses differ by less than 0.02 nats.

Method: Byte-level language model of 6 layers and 64 features, Post-LN, 800 steps of 512 bytes, warm-up of 80,
cosine schedule, two learning rates for each arm, chosen on validation. In one arm the output layers of
attention and of the feed-forward, which write what each LayerNorm reads, have no bias; all other biases,
and those of the norms, stay. (A note says that such a bias can be removed without harm. An earlier version
of the ledger judged that by whether beta can absorb the bias, which is the question of the study
bias-and-gain; this one was added for it.)

Refuted if: the losses differ by 0.02 nats or more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normkit.lab.design import Plot, Rule, Study, trained
from normkit.lab.tasks.text import TextTask

if TYPE_CHECKING:
    from torch import nn

    from normkit.lab.run import Run

COMMON: dict[str, Any] = {"norm": "layer", "placement": "post", "schedule": "cosine"}
SIZES: dict[str, Any] = {"lr": [1e-3, 3e-3], "steps": 800, "warmup": 80, "depth": 6, "width": 64}
SMALL: dict[str, Any] = {"lr": [1e-3], "steps": 6, "warmup": 2, "depth": 1, "width": 16, "batch_size": 4}


class WithoutBias(TextTask):
    """The layers that write to the stream, right before each LayerNorm, have no bias."""

    def model(self, run: Run) -> nn.Module:
        model = super().model(run)
        for name in ("attention", "feed_forward"):
            for block in self.layers(model):
                block.get_submodule(f"{name}.fn.output").register_parameter("bias", None)
        return model


WITH, WITHOUT = "text", f"{__name__}:{WithoutBias.__name__}"

STUDY = Study(
    claims=(60,),
    runs=trained({"task": WITH}, {"task": WITHOUT}, **COMMON, **SIZES),
    quick_runs=trained({"task": WITH}, {"task": WITHOUT}, **COMMON, **SMALL),
    seeds=6,
    minutes=17,
    scale="6 layers of 64 features, 316,000 weights, 800 steps, 1.3 bytes a parameter, Python source",
    rules=(
        Rule(
            "removed",
            "Without the biases before its norms the loss is the same, to 0.02 nats",
            lambda r: r.best("loss", task=WITHOUT) - r.best("loss", task=WITH),
            -0.02,
            0.02,
            unit="nats",
            yes="The biases right before LayerNorm can go: without them the loss of a small Post-LN model "
            "changes by {effect}.",
            no="Without the biases right before LayerNorm the loss of a small Post-LN model changes by "
            "{effect}.",
        ),
        Rule(
            "better",
            "Without them the loss is lower",
            lambda r: r.best("loss", task=WITH) - r.best("loss", task=WITHOUT),
            above=0,
            unit="nats",
            aside=True,
        ),
        Rule(
            "learnt",
            "Both arms end below the trigram table",
            lambda r: all(r.best("loss", task=t) < r[0]["baseline_trigram"] for t in (WITH, WITHOUT)),
            above=0.4,
            count=True,
            aside=True,
        ),
    ),
    plots=(
        Plot(
            "lr",
            "loss",
            "task",
            "Held-out loss with the biases before each LayerNorm and without. Lines on top of each other: "
            "not needed.",
            log_x=True,
            x_title="learning rate",
            y_title="nats a byte",
            names={"text": "with biases", "WithoutBias": "without"},
        ),
    ),
    limits="One small model and one text; other biases, and what they do to quantisation, are not looked at.",
)
