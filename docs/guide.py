"""Writes docs/which-norm.md: which norm, and where? Every sentence comes with the rule that decides it.

    python docs/guide.py

A sentence is chosen by the verdict of its rule on the committed rows, and its number is the measured one.
What no rule decides is not said.
"""

from __future__ import annotations

from pathlib import Path

from normkit.lab.studying import StudyResult, committed

HERE = Path(__file__).parent

# Heading -> (rule, what to say if it is supported, if it is not). Inconclusive rules are said to be so.
GUIDE: dict[str, list[tuple[str, str, str]]] = {
    "Which norm?": [
        (
            "rms-against-ln.gap",
            "In a Transformer take RMSNorm or LayerNorm, as you like: their losses differ by {effect}.",
            "In a Transformer LayerNorm and RMSNorm do not learn alike: their losses differ by {effect}.",
        ),
        (
            "rms-against-ln.ours",
            "RMSNorm is the cheaper one with kernels made for it ({effect}).",
            "RMSNorm is not cheaper than LayerNorm even with kernels made for it ({effect}).",
        ),
        (
            "rms-against-ln.torchs",
            "With torch's own on a CPU it is cheaper, too ({effect}).",
            "With torch's own on a CPU it is not cheaper ({effect}).",
        ),
        (
            "rms-against-ln.fold",
            "A trained Pre-LN model can be rewritten with RMSNorm exactly.",
            "A trained Pre-LN model cannot be rewritten with RMSNorm exactly.",
        ),
        (
            "batch-size.mlp-batch",
            "Avoid BatchNorm where few numbers share a mean: from 32 rows to 2 an MLP loses {effect}.",
            "BatchNorm stood batches of 2 rows in an MLP: it lost {effect}.",
        ),
        (
            "batch-size.conv-batch",
            "In a conv net, where every pixel counts, it stands small batches ({effect}).",
            "In a conv net it suffers from small batches as well ({effect}).",
        ),
        (
            "padding-and-causality.leak",
            "Never use BatchNorm in a causal model: in training it shows the future ({effect}).",
            "BatchNorm did not show the future to a causal model ({effect}).",
        ),
        (
            "padding-and-causality.masked",
            "With padding, give BatchNorm a mask: then padding changes nothing.",
            "Even with a mask padding changes BatchNorm ({effect}).",
        ),
        (
            "vision.better",
            "For images in a conv net BatchNorm is better than LayerNorm, by {effect} of error.",
            "For small images in a conv net BatchNorm is not half a point better than LayerNorm ({effect}).",
        ),
        (
            "norm-free.dyt",
            "DyT can take the place of the norm ({effect} behind).",
            "Do not expect DyT to take the place of the norm as it is: {effect} behind.",
        ),
    ],
    "Where?": [
        (
            "max-learning-rate.pre-post",
            "Take Pre-LN rather than Post-LN if you would rather not tune: it stands {effect} its rate.",
            "Pre-LN stands no larger learning rate than Post-LN ({effect}).",
        ),
        (
            "warm-up.post",
            "With Post-LN use a warm-up: it then stands {effect} the learning rate.",
            "A short warm-up does not give Post-LN three times the learning rate ({effect}).",
        ),
        (
            "warm-up.pre",
            "Pre-LN does not need one: its best loss moves by {effect}.",
            "Pre-LN's best loss moves with a warm-up, too, by {effect}.",
        ),
        (
            "depth-rescue.deepnorm",
            "For a deep stack with norms on the sum take DeepNorm: 12 layers get {effect}, without warm-up.",
            "DeepNorm did not rescue 12 layers ({effect}).",
        ),
        (
            "post-ln-quality.post",
            "If you can train long, with a warm-up, Post-LN ends lower than Pre-LN, by {effect}.",
            "That Post-LN is better in the end was not seen: Pre-LN is {effect} behind it.",
        ),
        (
            "useful-depth.pre",
            "Late layers of Pre-LN do little: leaving one out costs {effect}.",
            "Late layers of Pre-LN do their part in a 12-layer model: leaving one out costs {effect}.",
        ),
        (
            "qk-norm.logit",
            "Normalise queries and keys if logits of attention grow: they are {effect} smaller.",
            "Normalising queries and keys did not make logits ten times smaller ({effect}).",
        ),
    ],
    "How?": [
        (
            "numerics.one-pass",
            "Never compute a variance as mean(x²) - mean(x)² in float32: at a mean of 1,000 it is {effect} "
            "as wrong.",
            "The one-pass variance is good enough in float32 ({effect}).",
        ),
        (
            "bias-and-gain.redundant",
            "Leave out the bias of a linear layer before LayerNorm: it changes {effect}.",
            "Keep the bias of a linear layer before LayerNorm: it changes {effect}.",
        ),
        (
            "expressivity.needed",
            "Keep gain and bias: without them the loss is {effect} higher.",
            "Gain and bias are not needed in Pre-LN: without them the loss changes by {effect}.",
        ),
        (
            "stream.scale",
            "Inputs that grow all together do not hurt a network with LayerNorm ({effect}).",
            "Inputs that grow all together hurt a network with LayerNorm ({effect}).",
        ),
        (
            "stream.shift",
            "Nor do inputs that shift ({effect}).",
            "Inputs that shift do: normalise your data all the same ({effect}).",
        ),
        (
            "cost.share-ours",
            "Do not choose a norm by its cost: it takes {effect}.",
            "The norm is a large part of a training step: {effect}.",
        ),
    ],
}


def sentence(rule: str, yes: str, no: str, results: dict[str, StudyResult]) -> str:
    """The one that the verdict chooses, with its number and its evidence."""
    name, _, which = rule.partition(".")
    result = results[name]
    ruling = result.rulings[which]
    unit = next(r.unit for r in result.study.rules if r.name == which)
    effect = f"{ruling.effect} {unit}".strip()
    text = {"supported": yes, "not supported": no}.get(ruling.verdict)
    if text is None:
        says = next(r.says for r in result.study.rules if r.name == which)
        text = f"Not decided, because the seeds disagree ({effect}): “{says}”."
    return f"- {text.format(effect=effect)} [{rule}](../results/{name}.json)"


def guide() -> str:
    results = committed()
    about = next(iter(results.values())).about
    lines = [
        "# Which norm should I use, and where?",
        "",
        "Written by docs/guide.py from the committed results of the studies: each sentence is chosen by the",
        "verdict of the rule behind it, and links to its rows. `normkit study NAME` repeats it, and",
        "`normkit study --ledger` has the 89 claims. All was measured with models of some 300,000 weights on",
        "two cores; what that cannot show is said in each study.",
        "",
        "For your own data, do not believe this page: `normkit compare --data …` measures it.",
    ]
    for heading, sentences in GUIDE.items():
        lines += ["", f"## {heading}", ""]
        lines += [sentence(*parts, results) for parts in sentences]
    lines += ["", f"Measured on {about['date']} with {about['code']}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "which-norm.md").write_text(guide(), encoding="utf-8")
