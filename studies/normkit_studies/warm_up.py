"""Who needs a warm-up?

Question: Can Post-LN be trained without a warm-up of the learning rate, can Pre-LN, and what does it give
each of them?

Hypothesis: Xiong et al. 2020 (arXiv:2002.04745): without a warm-up Post-LN ends higher than with one, by
more than 0.02 nats, each at its best learning rate; Pre-LN ends within 0.02 nats of where it ends with
one. And at the learning rate that is best for Pre-LN, Post-LN without a warm-up has learnt less than
Pre-LN, by more than 0.1 nats.

Method: Byte-level language model of 6 layers and 64 features, 4,000 steps of 512 bytes, which are 6.5
bytes a parameter; cosine schedule; no warm-up, or one of 500 steps; learning rates of 3e-4, 1e-3, 3e-3
and 1e-2 for all arms, chosen on validation. Without norms at the same rates, without a warm-up. An earlier
study (seeds 200 to 205, 150 steps, in which the loss of a bigram table was not reached) had shown that
Post-LN starts poorly at 3e-3; no rule rests on its numbers.

Refuted if: Post-LN gains 0.02 nats or less by a warm-up, Pre-LN's loss moves by 0.02 nats or more, or
Post-LN is not 0.1 nats behind at Pre-LN's rate.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from normkit.lab.design import Plot, Rows, Rule, Study, trained

RATES = [3e-4, 1e-3, 3e-3, 1e-2]
SIZES: dict[str, Any] = {"depth": 6, "width": 64, "steps": 4000}
SMALL: dict[str, Any] = {"depth": 1, "width": 16, "batch_size": 4, "steps": 6}
COMMON: dict[str, Any] = {"task": "text", "norm": "layer", "schedule": "cosine"}


def _without(rows: Rows, placement: str) -> float:
    return rows.best("loss", placement=placement, warmup=0)


def _with(rows: Rows, placement: str) -> float:
    (warmup,) = {row["warmup"] for row in rows} - {0}
    return rows.best("loss", placement=placement, warmup=warmup)


def _at_its_rate(rows: Rows, placement: str) -> float:
    """Without a warm-up, at the rate that is best for Pre-LN."""
    return rows.get("loss", placement=placement, warmup=0, lr=rows.best_rate(placement="pre", warmup=0))


def _largest(rows: Rows, placement: str) -> bool:
    """At the largest rate, without a warm-up: is the loss below that of a bigram table?"""
    (row,) = rows.where(placement=placement, warmup=0, lr=max(row["lr"] for row in rows))
    return row["status"] != "diverged" and row["loss"] < row["baseline_bigram"]


STUDY = Study(
    claims=(7, 19, 91),
    runs=trained(**COMMON, **SIZES, placement=["post", "pre"], warmup=[0, 500], lr=RATES)
    + trained(**COMMON, **SIZES, placement="none", warmup=0, lr=RATES),
    quick_runs=trained(**COMMON, **SMALL, placement=["post", "pre"], warmup=[0, 3], lr=[1e-3, 1e-2])
    + trained(**COMMON, **SMALL, placement="none", warmup=0, lr=[1e-3, 1e-2]),
    minutes=130,
    scale="6 layers, 64 features, 316,000 parameters; 2 M bytes of Python's source, 6.5 a parameter",
    paper="Xiong et al. 2020, IWSLT'14 German to English, 6 + 6 layers: Post-LN 8.45 BLEU without a warm-up, "
    "about 34 with one; Pre-LN without one is as good",
    rules=(
        Rule(
            "post",
            "A warm-up lowers Post-LN's loss by more than 0.02 nats",
            lambda r: _without(r, "post") - _with(r, "post"),
            above=0.02,
            unit="nats",
            yes="Give Post-LN a warm-up: it ends {effect} lower with one, each at its best learning rate.",
            no="A warm-up gave Post-LN little at its best learning rate: it ends {effect} lower with one.",
        ),
        Rule(
            "pre",
            "Pre-LN's loss moves by less than 0.02 nats",
            lambda r: _without(r, "pre") - _with(r, "pre"),
            -0.02,
            0.02,
            unit="nats",
            yes="Pre-LN does not need one: its loss moves by {effect}.",
            no="Pre-LN gains by one, too: {effect}.",
        ),
        Rule(
            "post-behind",
            "Without a warm-up, at Pre-LN's best rate, Post-LN is more than 0.1 nats behind Pre-LN",
            lambda r: _at_its_rate(r, "post") - _at_its_rate(r, "pre"),
            above=0.1,
            unit="nats",
            yes="Without one Post-LN does not stand the learning rate that is best for Pre-LN: it is "
            "{effect} behind there.",
            no="Without one Post-LN stands the learning rate that is best for Pre-LN: it is {effect} behind.",
        ),
        Rule(
            "norm-none",
            "Without a warm-up, at Pre-LN's best rate, a network without norms is more than 0.1 nats behind",
            lambda r: _at_its_rate(r, "none") - _at_its_rate(r, "pre"),
            above=0.1,
            unit="nats",
            aside=True,
            yes="A network without norms is {effect} behind Pre-LN at that rate.",
            no="A network without norms is hardly behind Pre-LN at that rate: {effect}.",
        ),
        *(
            Rule(
                f"largest-{placement}",
                f"At 1e-2 without a warm-up {title} gets below the bigram table in most seeds",
                partial(_largest, placement=placement),
                above=0.4,
                count=True,
                aside=True,
            )
            for placement, title in (
                ("pre", "Pre-LN"),
                ("post", "Post-LN"),
                ("none", "a net without norms"),
            )
        ),
    ),
    plots=tuple(
        Plot(
            "lr",
            "loss",
            "placement",
            sentence,
            log_x=True,
            where={"warmup": lambda warmup, has=has: (warmup > 0) == has},
            x_title="learning rate",
            y_title="nats a byte",
        )
        for has, sentence in (
            (False, "Held-out loss without a warm-up. Lower is better."),
            (True, "Held-out loss with a warm-up."),
        )
    ),
    limits="One model size and one text. A machine translation model, as in the paper, may differ.",
)
