"""Writes docs/which-norm.md: which norm, and where? Every sentence comes with the rule that decides it.

    python docs/guide.py

A sentence is chosen by the verdict of its rule on the committed rows, and its number is the measured one.
What no rule decides is said to be open, at the end.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from normkit.lab.claims import VERDICTS, ledger
from normkit.lab.design import Effect
from normkit.lab.studying import StudyResult, committed

HERE = Path(__file__).parent

# Heading -> (rule, what to say if it is supported, if it is not). {effect} is what was measured with its 95 %
# interval; {less} is the same with the other sign.
GUIDE: dict[str, list[tuple[str, str, str]]] = {
    "Which norm?": [
        (
            "rms-against-ln.gap",
            "In a Transformer take LayerNorm or RMSNorm, as you like: the loss with RMSNorm is higher by "
            "{effect}.",
            "In a Transformer LayerNorm and RMSNorm do not learn alike: RMSNorm's loss is higher by "
            "{effect}.",
        ),
        (
            "rms-against-ln.ours",
            "RMSNorm is the cheaper one with kernels made for it: it takes {effect}.",
            "RMSNorm is not 5 % cheaper than LayerNorm even with kernels made for it: it takes {effect}.",
        ),
        (
            "rms-against-ln.torchs",
            "With torch's own on a CPU RMSNorm is not cheaper: it takes {effect}.",
            "With torch's own on a CPU RMSNorm is cheaper: it takes {effect}.",
        ),
        (
            "rms-against-ln.fold",
            "A trained Pre-LN model can be rewritten with RMSNorm exactly (a tied head has to be untied),"
            " so the choice can wait.",
            "A trained Pre-LN model cannot be rewritten with RMSNorm exactly.",
        ),
        (
            "batch-norm-in-text.behind",
            "Leave BatchNorm out of language models: trained for a while it is behind LayerNorm by {effect}.",
            "BatchNorm is hardly behind LayerNorm in a small language model, by {effect}.",
        ),
        (
            "padding-and-causality.leak",
            "In a causal model BatchNorm also shows the future while it trains: with 128 tokens in a "
            "batch a logit moves by up to {effect} when the last tokens change.",
            "BatchNorm did not show the future to a causal model ({effect}).",
        ),
        (
            "padding-and-causality.masked",
            "With padding, give BatchNorm a mask: then padding changes nothing.",
            "Even with a mask padding changes BatchNorm ({effect}).",
        ),
        (
            "vision.better",
            "For small images in a conv net take BatchNorm: its error is lower than LayerNorm's by {effect}.",
            "For small images in a conv net BatchNorm is not half a point better than LayerNorm ({effect}).",
        ),
        (
            "vision.noise",
            "Where noise is to be expected BatchNorm loses less than LayerNorm, by {effect}.",
            "Do not count on BatchNorm where the inputs may become noisy: noise costs it more than it "
            "costs LayerNorm, by {less}.",
        ),
        (
            "batch-size.mlp-batch",
            "Avoid BatchNorm where two numbers share a mean: from 32 rows to 2 the error of an MLP rises by "
            "{effect}.",
            "BatchNorm stood batches of 2 rows in an MLP: its error rose by {effect}.",
        ),
        (
            "batch-size.mlp-four",
            "With four rows it still does: by {effect}.",
            "With four rows most of that is gone: from 32 rows to 4 it rises by {effect}.",
        ),
        (
            "batch-size.conv-batch",
            "In a conv net, where every pixel counts, even two images did no harm, with 16 times the "
            "steps: the error rises by {effect}.",
            "In a conv net it suffers from small batches as well: the error rises by {effect}.",
        ),
        (
            "norm-free.dyt-learns",
            "If you try DyT, bring the stream to a spread of 1 first: it does not scale small inputs up, "
            "and with an embedding of 0.02 it learns nothing in 100 steps. Then it gets further, by "
            "{effect}.",
            "DyT does not need a stream of spread 1 ({effect}).",
        ),
        (
            "norm-free.dyt-scaled",
            "Then it is as good as LayerNorm: {effect} behind.",
            "Even then it starts more slowly than LayerNorm: after 100 steps it is behind by {effect}.",
        ),
    ],
    "Where?": [
        (
            "max-learning-rate.pre-post",
            "Take Pre-LN rather than Post-LN if you would rather not tune: without warm-up it stands "
            "{effect} Post-LN's learning rate.",
            "Pre-LN does not stand three times the learning rate of Post-LN ({effect}).",
        ),
        (
            "max-learning-rate.norm-none",
            "Against no norm at all Pre-LN stands {effect} the learning rate, in six layers.",
            "Against no norm at all Pre-LN does not stand three times the learning rate ({effect}).",
        ),
        (
            "max-learning-rate.deepnorm-ahead",
            "For a quick start take DeepNorm: after 100 steps it is ahead of Pre-LN by {effect}.",
            "DeepNorm starts no faster than Pre-LN ({effect}).",
        ),
        (
            "depth-rescue.deepnorm",
            "Take DeepNorm for a deep stack with norms on the sum: without warm-up 12 layers get "
            "{effect}, where Post-LN learns nothing.",
            "DeepNorm did not rescue 12 layers ({effect}).",
        ),
        (
            "warm-up.post",
            "With Post-LN use a warm-up: it then stands {effect} the learning rate.",
            "With Post-LN a warm-up helps less than is said: it stands {effect} the learning rate, not "
            "three.",
        ),
        (
            "warm-up.pre",
            "Pre-LN does not need one: its best loss moves by {effect}.",
            "Pre-LN's best loss moves with a warm-up, too, by {effect}.",
        ),
        (
            "post-ln-quality.post",
            "If you can train long, with a warm-up, Post-LN ends lower than Pre-LN, by {effect}.",
            "Do not take Post-LN for its final quality before you have seen it on your data: here, after "
            "1,000 steps, Pre-LN ended lower, by {less}.",
        ),
        (
            "useful-depth.pre",
            "Do not expect much of the late layers of a young Pre-LN stack: leaving one out costs {effect}.",
            "Late layers of Pre-LN do their part: leaving one out costs {effect}.",
        ),
        (
            "useful-depth.lns",
            "LayerNorm Scaling raises that by {effect}.",
            "LayerNorm Scaling does not raise that by a tenth: {effect}.",
        ),
        (
            "qk-norm.logit",
            "Normalise queries and keys if logits of attention grow: at a learning rate that is too large"
            " the largest is {effect} as large without.",
            "Normalising queries and keys did not make logits ten times smaller ({effect}).",
        ),
    ],
    "How?": [
        (
            "numerics.one-pass",
            "Never compute a variance as mean(x²) - mean(x)² in float32: at a mean of 1,000 the output is"
            " {effect} as wrong as ours.",
            "The one-pass variance is good enough in float32 ({effect}).",
        ),
        (
            "bias-and-gain.absorbed",
            "Leave out the bias of a linear layer before LayerNorm: the best beta does all but {effect} "
            "of it.",
            "A bias before LayerNorm is not redundant, as it is before BatchNorm: even with the best beta"
            " a new one changes {effect}.",
        ),
        (
            "expressivity.needed",
            "Keep gain and bias: without them the loss is higher by {effect}.",
            "For the start of training gain and bias of a Pre-LN are hardly needed: without them the loss"
            " after 100 steps changes by {effect}.",
        ),
        (
            "stream.scale",
            "Inputs that grow all together do not hurt a network with LayerNorm: it ends with {effect}.",
            "Inputs that grow all together hurt a network with LayerNorm: it ends with {effect}.",
        ),
        (
            "stream.shift",
            "Inputs that shift do not hurt a network with LayerNorm: it ends with {effect}.",
            "Inputs that shift hurt a network with LayerNorm, so normalise your data all the same: it "
            "ends with {effect}.",
        ),
        (
            "regularisation.gap",
            "A norm also narrows the gap between training and test error: LayerNorm by {effect}.",
            "Do not take LayerNorm for a regulariser: it narrows the gap between training and test error "
            "by {effect}, not by half a point.",
        ),
        (
            "cost.share-ours",
            "Do not choose a norm by its cost: of forward and backward in a small model ours takes {effect}.",
            "The norm is a large part of forward and backward: {effect}.",
        ),
        (
            "cost.share-torch",
            "torch's takes {effect}.",
            "torch's takes {effect}.",
        ),
    ],
}


def evidence(rule: str, results: dict[str, StudyResult]) -> tuple[str, str, Effect, str]:
    """What the rule says, its verdict, what was measured, and its unit."""
    name, _, which = rule.partition(".")
    found = next(r for r in results[name].study.rules if r.name == which)
    ruling = results[name].rulings[which]
    return found.says, ruling.verdict, ruling.effect, found.unit


def turned(effect: Effect) -> Effect:
    low, high = (None if end is None else -end for end in (effect.high, effect.low))
    return Effect(-effect.mean, low, high)


def guide() -> str:
    results = committed()
    about = next(iter(results.values())).about
    count = Counter(claim["verdict"] for claim in ledger(results))
    counted = ", ".join(f"{count[verdict]} are {verdict}" for verdict in VERDICTS)
    lines = [
        "# Which norm should I use, and where?",
        "",
        "Written by docs/guide.py from the committed results of the studies: each sentence is chosen by the",
        "verdict of the rule behind it, and links to its rows. In brackets: the 95 % interval over seeds.",
        "`normkit study NAME` repeats it. Models have 10,000 to 600,000 weights (for the cost 3 million);",
        "what that cannot show is said in each study.",
        "",
        f"Of the 89 claims in `normkit study --ledger` {counted}.",
        "",
        "For your own data, do not believe this page: `normkit compare --data …` measures it.",
    ]
    undecided = []
    for heading, sentences in GUIDE.items():
        lines += ["", f"## {heading}", ""]
        for rule, yes, no in sentences:
            says, verdict, effect, unit = evidence(rule, results)
            link = f"[{rule}](../results/v1/{rule.partition('.')[0]}.json)"
            if verdict == "inconclusive":
                undecided.append(f"- “{says}”: {effect.say(unit)}. {link}")
                continue
            text = yes if verdict == "supported" else no
            lines.append(f"- {text.format(effect=effect.say(unit), less=turned(effect).say(unit))} {link}")
    if undecided:
        lines += ["", "## What could not be decided here", "", *undecided]
    lines += ["", f"Measured on {about['date']} with {about['code']}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "which-norm.md").write_text(guide(), encoding="utf-8")
