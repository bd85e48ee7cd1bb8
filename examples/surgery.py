"""Surgery on real weights: SmolLM2-135M, folded, saved, loaded again; then rounded to int8.

    make surgery

Folds all gains into what reads them, with a certificate, saves the model and loads it in transformers: the
same tokens, the same perplexity. Then all matrices are rounded to int8, with and without ``equalise_gains``.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import torch
from smollm import FILE, weights
from torch import Tensor, nn

import normkit as nk

PROMPT = "The three primary colours are"


def main() -> None:
    folder = weights()
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    print(f"reading {FILE} ...")
    unpacked = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
    model = plain(unpacked)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    ids = tokenizer(inspect.getdoc(textwrap.TextWrapper) or "", return_tensors="pt").input_ids
    text = tokenizer(inspect.getsource(textwrap), return_tensors="pt").input_ids[:, :1024]
    original = copy.deepcopy(model)
    tokens, before = generate(model, tokenizer), perplexity(model, text)

    start = time.perf_counter()
    with nk.surgery.progress(lambda words: print(f"  {time.perf_counter() - start:5.1f} s  {words}")):
        certificate = nk.surgery.fold_affine(model, ids[:, :64])
    print(f"\n{certificate.verdict}\nfolded and certified in {time.perf_counter() - start:.0f} s")

    with tempfile.TemporaryDirectory() as new:
        model.save_pretrained(new)
        certificate.save(Path(new) / "surgery.json")
        loaded = AutoModelForCausalLM.from_pretrained(new, dtype=torch.float32).eval()
    is_same = generate(loaded, tokenizer) == tokens
    print("Loaded again in transformers: " + ("the same tokens." if is_same else "NOT the same tokens."))

    equalised = copy.deepcopy(original)
    nk.surgery.equalise_gains(equalised, text[:, :256])
    print("\nperplexity on 1,024 tokens of Python's textwrap.py")
    print(f"  {'as it is':34} {before:8.4f}")
    print(f"  {'folded':34} {perplexity(loaded, text):8.4f}")
    print(f"  {'equalised':34} {perplexity(equalised, text):8.4f}")
    for what, per_row in (("a scale for each row", True), ("one scale for each matrix", False)):
        print(f"matrices rounded to int8, {what}")
        for name, found in (("as it is", original), ("folded", loaded), ("equalised", equalised)):
            print(f"  {name:34} {perplexity(rounded(found, per_row), text):8.4f}")
    sys.exit(0 if is_same else 1)


def plain(unpacked: nn.Module) -> nn.Module:
    """The same without a word about GGUF, so that transformers saves it."""
    config = type(unpacked.config).from_dict(
        {k: v for k, v in unpacked.config.to_dict().items() if k != "quantization_config"}
    )
    model = type(unpacked)(config).eval()
    model.load_state_dict(unpacked.state_dict())
    return model


def generate(model: nn.Module, tokenizer) -> list[int]:
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    stop = tokenizer.eos_token_id
    return model.generate(ids, max_new_tokens=40, do_sample=False, pad_token_id=stop)[0].tolist()


@torch.no_grad()
def perplexity(model: nn.Module, text: Tensor) -> float:
    return math.exp(float(model(text, labels=text).loss))


@torch.no_grad()
def rounded(model: nn.Module, per_row: bool) -> nn.Module:
    """All matrices but the embedding and the head to the nearest of 255 steps."""
    found = copy.deepcopy(model)
    for name, module in found.named_modules():
        if isinstance(module, nn.Linear) and "lm_head" not in name:
            w = module.weight
            step = (w.abs().amax(1, keepdim=True) if per_row else w.abs().max()) / 127
            w.copy_((w / step).round() * step)
    return found


if __name__ == "__main__":
    main()
