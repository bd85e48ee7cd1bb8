"""Train a small language model on the Python standard library's own source, and let it write some.

    python examples/train.py [--seconds 60] [--placement pre] [--norm rms]

What ``make demo`` runs. Nothing is downloaded: the text is the library that Python came with.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

import normkit as nk

BATCH, LENGTH = 16, 128
LEARNING_RATE, WARM_UP = 3e-3, 20
PROMPT = "def read(self, path):\n"


def main() -> None:
    args = arguments()
    console = Console(highlight=False, soft_wrap=True)
    torch.manual_seed(args.seed)
    training, unseen = text()
    model = nk.LanguageModel(
        vocab=256,
        dim=128,
        depth=4,
        heads=4,
        context=2 * LENGTH,
        placement=args.placement,
        norm=args.norm,
        activation="swiglu",
        bias=False,
    )
    weights = sum(p.numel() for p in model.parameters())
    where = nk.placement.PLACEMENTS[args.placement]
    console.print(f"text    {len(training) / 1e6:.1f} MB of Python {platform.python_version()}'s own source")
    console.print(f"model   {weights:,} weights, 4 layers, norm: {args.norm}, placement: {where.title}")
    console.print(f"        {where}")
    before = evaluate(model, unseen)
    steps = train(model, training, args.seconds, console)
    after = evaluate(model, unseen)
    console.print(f"\nloss on files that it has not seen, in nats a byte: {before:.2f} -> {after:.2f}")
    console.print(
        f"({steps} steps of {BATCH * LENGTH:,} bytes; one byte drawn blindly costs {math.log(256):.2f})\n"
    )
    console.print("It goes on by itself after the first line:\n")
    console.print(sample(model), markup=False)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small language model, and let it write some Python."
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long to train")
    parser.add_argument("--placement", default="pre", choices=nk.placement.PLACEMENTS)
    parser.add_argument("--norm", default="rms", choices=("layer", "rms", "batch", "dyt", "scale"))
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def text() -> tuple[Tensor, Tensor]:
    """The bytes of the standard library's modules; every tenth file is kept apart."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    unseen = files[::10]
    return joined([f for f in files if f not in unseen]), joined(unseen)


def joined(files: list[Path]) -> Tensor:
    return torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)


def draw(data: Tensor, batch: int) -> Tensor:
    starts = torch.randint(len(data) - LENGTH - 1, (batch,))
    return torch.stack([data[s : s + LENGTH + 1] for s in starts]).long()


def train(model: nk.LanguageModel, data: Tensor, seconds: float, console: Console) -> int:
    """As many steps as fit; the learning rate rises for a few of them, and falls as time runs out."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1)
    columns = (TextColumn("training"), BarColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn())
    start, step, smooth = time.perf_counter(), 0, 0.0
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=seconds, state="")
        while (passed := time.perf_counter() - start) < seconds:
            share = min(1.0, (step + 1) / WARM_UP) * (1 - 0.9 * passed / seconds)
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * share
            loss = model.loss(draw(data, BATCH))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            smooth = loss.item() if step == 1 else 0.95 * smooth + 0.05 * loss.item()
            bar.update(task, completed=passed, state=f"step {step:4}, loss {smooth:.2f}")
            if not console.is_terminal and step % 100 == 0:
                console.print(f"step {step:4}, loss {smooth:.2f}")
        bar.update(task, completed=seconds)
    return step


@torch.no_grad()
def evaluate(model: nk.LanguageModel, data: Tensor) -> float:
    model.eval()
    generator = torch.random.get_rng_state()
    torch.manual_seed(1)
    loss = model.loss(draw(data, 64)).item()
    torch.random.set_rng_state(generator)
    model.train()
    return loss


def sample(model: nk.LanguageModel) -> str:
    prompt = torch.tensor([list(PROMPT.encode())])
    length = model.config.context - prompt.shape[1]
    ids = model.generate(prompt, length, temperature=0.7, top_k=40)
    written = bytes(ids[0].tolist()).decode("utf-8", "replace")
    return "\n".join(f"    {line}" for line in written.rsplit("\n", 1)[0].splitlines())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nStopped.")
