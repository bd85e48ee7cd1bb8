"""Is BatchNorm better than LayerNorm in conv nets?

Question: On images, in the same conv net, which norm gives the lowest error, and does LayerNorm over the
channels of a pixel harm? Is BatchNorm more robust to noise, and does it break the residual stream when it
stands on the sum?

Hypothesis: BatchNorm is better than LayerNorm, by more than half a point of error; LayerNorm still learns
the task, to less than 10 % error. Noise costs BatchNorm at least a point less. BatchNorm on the sum, as
Post-LN has it, learns to less than 10 % error, too.

Method: scikit-learn's digits, a residual conv net of 16 channels, norm before each sublayer (and once
BatchNorm after the sum), 32 rows, 400 steps, each arm at the best of three learning rates. Noise: a
spread of a quarter of the range from black to white, added to unseen images.

Refuted if: BatchNorm's error is not at least half a point lower, LayerNorm's is 10 % or more, noise does
not cost BatchNorm a point less, or BatchNorm after the sum has 10 % or more.
"""

from __future__ import annotations

from normkit.lab.studies.base import Plot, Rows, Rule, Study, trained

COMMON = {"task": "digits", "network": "conv", "batch_size": 32}
RATES = [3e-3, 1e-2, 3e-2]


def _best(rows: Rows, norm: str) -> float:
    return rows.lowest("error", norm=norm, placement="pre")


def _noise(rows: Rows, norm: str) -> float:
    """By how much noise raises the error of the best run."""
    best = min(rows.where(norm=norm, placement="pre"), key=lambda row: row["error"])
    return float(best["noisy_error"] - best["error"])


ARMS = {"placement": "pre", "norm": ["batch", "layer", "group", "instance", "none"]}

STUDY = Study(
    claims=(24, 36, 40, 41, 42),
    runs=trained(**COMMON, **ARMS, lr=RATES, depth=2, width=16, steps=400)
    + trained(**COMMON, placement="post", norm="batch", lr=RATES, depth=2, width=16, steps=400),
    quick_runs=trained(**COMMON, **ARMS, lr=1e-2, depth=1, width=8, steps=20)
    + trained(**COMMON, placement="post", norm="batch", lr=1e-2, depth=1, width=8, steps=20),
    rules=(
        Rule(
            "better",
            "BatchNorm's error is more than half a point below LayerNorm's",
            lambda r: (
                r.lowest("error", norm="layer", placement="pre")
                - r.lowest("error", norm="batch", placement="pre")
            ),
            above=0.5,
            unit="points",
        ),
        Rule(
            "learns",
            "LayerNorm over the channels of a pixel learns to less than 10 % error",
            lambda r: _best(r, "layer"),
            below=10,
            unit="%",
        ),
        Rule(
            "gain",
            "A norm lowers the error by one to three points",
            lambda r: _best(r, "none") - _best(r, "batch"),
            1,
            3,
            unit="points",
        ),
        Rule(
            "noise",
            "Noise costs BatchNorm at least a point less than LayerNorm",
            lambda r: _noise(r, "layer") - _noise(r, "batch"),
            above=1,
            unit="points",
        ),
        Rule(
            "sum",
            "BatchNorm after the residual sum learns to less than 10 % error",
            lambda r: r.lowest("error", norm="batch", placement="post"),
            below=10,
            unit="%",
        ),
    ),
    plots=(
        Plot(
            "lr",
            "error",
            "norm",
            "Error on unseen digits against the learning rate. Lower is better.",
            where={"placement": "pre"},
            log_x=True,
            x_title="learning rate",
            y_title="error, %",
        ),
    ),
    limits="Small images and a small net: this says little about ImageNet.",
)
