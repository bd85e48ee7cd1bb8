"""Every surgery on every architecture that the doctor traces: certified, refused, or another function.

    make surgeries            # docs/surgeries.md, from build/surgeries.jsonl, which it goes on with

Models are built small, in float64, with random norms and biases. A certificate is not taken at its word: each
edited model is compared with the one before on a second batch, and must be as before, bit for bit, in the
end.
"""

from __future__ import annotations

import copy
import json
import re
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import hugging_face
import torch
from torch import Tensor, nn

import normkit as nk
from normkit.surgery.operating import outputs_of
from normkit.surgery.proving import difference, outputs, randomise
from normkit.surgery.subject import find_norms

ROOT = Path(__file__).parents[1]
ROWS, PAGE = ROOT / "build" / "surgeries.jsonl", ROOT / "docs" / "surgeries.md"
EXACT = ("fold_affine", "center_to_rms", "fold_batchnorm", "drop_bias", "equalise_gains")
OTHERS = ("bn_to_group", "ln_to_rms", "to_dyt", "add_qk_norm")
BOUND = {torch.float64: 1e-9, torch.float32: 1e-4}  # of a second batch
# These check that images and the places for them in the text agree, or have code that is no float64.
SAME_BATCH = {"shieldgemma2"}


def row(name: str, surgeries: tuple[str, ...] = EXACT + OTHERS) -> dict[str, Any]:
    """What each surgery gives, and how many norms with parameters there are."""
    model, batch = build(name)
    second = batch if name in SAME_BATCH else other(batch)
    norms = {norm.path for norm in find_norms(nk.inspect(model, batch)) if norm.gain or norm.bias}
    found: dict[str, Any] = {"name": name, "norms": len(norms)}
    for surgery in surgeries:
        found[surgery] = cell(surgery, copy.deepcopy(model), batch, second)
    return found


def cell(surgery: str, model: nn.Module, batch: Any, second: Any) -> dict[str, Any]:
    before = {n: t.clone() for n, t in model.state_dict().items()}
    first = wide_outputs(model, second)
    try:
        certificate = getattr(nk.surgery, surgery)(model, batch)
    except nk.NormkitError as error:
        text = str(error)
        if "is not proven" in text:
            return {"failed": text}
        return {"refused": reason(text.partition("model. ")[2].partition(": ")[2])}
    if not certificate.edits:
        return {}
    left = Counter(reason(entry.why) for entry in certificate.left)
    found: dict[str, Any] = {"edits": len(certificate.edits), "left": dict(left)}
    if certificate.exact:
        off = difference(first, wide_outputs(model, second))[0]
        found |= {"error": certificate.error, "second": off, "tolerance": certificate.tolerance}
        found["right"] = off <= max(BOUND[p.dtype] for p in model.parameters())
    else:
        found["drift"] = certificate.drift
    certificate.undo()
    after = model.state_dict()
    found["undone"] = before.keys() == after.keys() and all(
        torch.equal(t, after[n]) for n, t in before.items()
    )
    return found


def wide_outputs(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    with torch.no_grad():
        try:
            return outputs(copy.deepcopy(model).double(), batch, wide=True)
        except Exception:  # it has code that wants float32
            return outputs_of(model, batch)


def build(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, batch = hugging_face.build(name)
    wide = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    try:
        outputs_of(copy.deepcopy(model).double(), wide)
        model, batch = model.double(), wide
    except Exception:  # it has code that wants float32
        pass
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias") and parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    randomise(model, find_norms(nk.inspect(model, batch)))
    return model, batch


def other(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Other tokens, other pictures; masks and places as they are."""
    generator = torch.Generator().manual_seed(99)
    found = dict(batch)
    for name, value in batch.items():
        if name in ("input_ids", "decoder_input_ids"):
            found[name] = torch.randint(*hugging_face.TEXT, value.shape, generator=generator)
        elif value.is_floating_point() and not re.search("mask|padding|bbox|observed", name):
            found[name] = torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return found


def reason(text: str) -> str:
    """Without the names of this model's modules."""
    text = re.sub(r"(?<![\w.])[\w]+(\.[\w]+)+", "…", text.split("; ")[0].strip().rstrip("."))
    return re.sub(r" and \d+ more", "", text)


def words(found: dict[str, Any], letters: dict[str, str]) -> str:
    """A cell of the table."""
    if "refused" in found:
        return f"refused: {letters.get(found['refused'], 'z')}"
    if not found:
        return ""
    left = "".join(f" −{n}{letters.get(why, 'z')}" for why, n in sorted(found["left"].items()))
    return ("certified" if "error" in found else f"drift {found['drift']:.1g}") + left


def page(rows: list[dict[str, Any]]) -> str:
    rows = sorted(rows, key=lambda r: r["name"])
    reasons: Counter[str] = Counter()
    for found in rows:
        for surgery in EXACT + OTHERS:
            made = found[surgery]
            reasons.update([made["refused"]] if "refused" in made else made.get("left", {}))
    letters = dict(
        zip((why for why, _ in reasons.most_common(25)), "abcdefghijklmnopqrstuvwxy", strict=False)
    )
    lines = [
        "# Surgeries by architecture",
        "",
        f"Every surgery on {len(rows)} architectures of Hugging Face, built small, with random norms:",
        "written by `make surgeries`. *certified*: outputs and gradients are the same to 1e-10 in float64,",
        "outputs on a second batch too, and undo() gives the old bits. *−2a*: two norms were left, for",
        "reason a. *refused*: nothing could be done. *drift*: it changes the function, by so much of the",
        "largest output (of random weights). Empty: there is nothing to do.",
        "",
        "| Surgery | certified | of which everything | refused | nothing to do |",
        "|---|---|---|---|---|",
    ]
    for surgery in EXACT:
        cells = [found[surgery] for found in rows]
        done = [made for made in cells if "error" in made]
        whole = sum(not made["left"] for made in done)
        refused = sum("refused" in made for made in cells)
        lines.append(f"| {surgery} | {len(done)} | {whole} | {refused} | {len(rows) - len(done) - refused} |")
    lines += ["", "| | Reason | Times |", "|---|---|---|"]
    lines += [f"| {letters[why]} | {why} | {count} |" for why, count in reasons.most_common(25)]
    rest = sum(n for why, n in reasons.items() if why not in letters)
    lines += [f"| z | others | {rest} |", ""]
    heads = ["Architecture", "Norms", *EXACT, *OTHERS]
    lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for found in rows:
        cells = [words(found[surgery], letters) for surgery in EXACT + OTHERS]
        lines.append("| " + " | ".join([found["name"], str(found["norms"]), *cells]) + " |")
    return "\n".join(lines) + "\n"


def bad(rows: list[dict[str, Any]]) -> list[str]:
    """What must not be: a failed proof, a wrong second batch, an undo that is none."""
    return [
        f"{found['name']} {surgery}"
        for found in rows
        for surgery in EXACT + OTHERS
        if "failed" in found.get(surgery, {"failed": ""})
        or not found[surgery].get("right", True)
        or not found[surgery].get("undone", True)
    ]


def main() -> None:
    torch.set_num_threads(1)
    ROWS.parent.mkdir(exist_ok=True)
    done = {json.loads(line)["name"] for line in ROWS.read_text().splitlines()} if ROWS.exists() else set()
    left = [name for name in hugging_face.NAMES if name not in done]
    with ROWS.open("a") as file:
        for k, name in enumerate(left, 1):
            print(
                f"\r{len(done) + k}/{len(hugging_face.NAMES)} {name:40}", end="", file=sys.stderr, flush=True
            )
            try:
                found = row(name)
            except Exception as error:
                found = {"name": name, "crash": f"{type(error).__name__}: {error}"[:300]}
            file.write(json.dumps(found) + "\n")
            file.flush()
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    wrong = bad(rows)
    print(f"\n{len(wrong)} of {len(rows)} architectures have something wrong: {', '.join(wrong) or 'none'}")
    if not wrong:
        PAGE.write_text(page(rows), encoding="utf-8")
        print(f"wrote {PAGE}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
