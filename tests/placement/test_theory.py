"""What the papers say about a stack at initialisation, measured with three seeds."""

import functools
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import normkit as nk

DEPTHS = (2, 4, 8, 16, 32)
SEEDS = (0, 1, 2)


def model(placement, depth, seed):
    torch.manual_seed(seed)
    sizes = {"vocab": 64, "dim": 64, "depth": depth, "heads": 4, "context": 64}
    made = nk.LanguageModel(**sizes, placement=placement, activation="relu", tied=False)
    return made, torch.randint(64, (8, 32))


def slope(values):
    """Of a straight line through (log depth, log value)."""
    x, y = torch.tensor(DEPTHS).double().log(), torch.tensor(values).double().log()
    x = x - x.mean()
    return float(x @ (y - y.mean()) / (x @ x))


def gradient(placement, depth, seed):
    """Xiong et al. 2020: of the last feed-forward's output weight, for one token's loss, on average.

    Not of a mean over tokens: in a deep Post-LN they become alike, and their gradients add up (slopes of 0.2
    to 0.4 with depth).
    """
    made, ids = model(placement, depth, seed)
    weight = made.stack.blocks[-1].feed_forward.fn.output.weight
    norms = []
    for row in ids[:4]:
        logits = made(row[None])[:, -1]
        (grad,) = torch.autograd.grad(F.cross_entropy(logits, torch.randint(64, (1,))), weight)
        norms.append(grad.norm().item())
    return mean(norms)


@torch.no_grad()
def amplification(placement, depth, seed):
    """Liu et al. 2020: how far the output moves when every weight is shaken a little."""
    made, ids = model(placement, depth, seed)
    before = made.hidden(ids)
    for weight in made.stack.blocks.parameters():
        if weight.ndim > 1:
            weight += 1e-3 * weight.std() * torch.randn_like(weight)
    return (made.hidden(ids) - before).square().sum(-1).mean().item()


def update(placement, depth, seed):
    """Wang et al. 2022: how far the output moves in one step of gradient descent."""
    made, ids = model(placement, depth, seed)
    before = made.hidden(ids).detach()
    made.loss(ids).backward()
    with torch.no_grad():
        for weight in made.stack.blocks.parameters():
            weight -= 1e-3 * weight.grad
        return (made.hidden(ids) - before).square().sum(-1).mean().sqrt().item()


@functools.cache
def slopes(quantity, placement):
    return [slope([quantity(placement, depth, seed) for depth in DEPTHS]) for seed in SEEDS]


def mean(values):
    return sum(values) / len(values)


def test_the_last_gradient_shrinks_with_depth_in_pre_ln_and_not_in_post_ln():
    assert all(-0.75 < s < -0.25 for s in slopes(gradient, "pre"))
    assert all(abs(s) < 0.25 for s in slopes(gradient, "post"))


def test_post_ln_amplifies_a_perturbation_and_pre_ln_does_not():
    assert all(s > 0.8 for s in slopes(amplification, "post"))
    assert all(s < 0.5 for s in slopes(amplification, "pre"))
    assert all(s < 0 for s in slopes(amplification, "deepnorm"))


def test_deepnorm_bounds_an_update_whatever_the_depth():
    assert all(s < 0 for s in slopes(update, "deepnorm"))
    for seed in SEEDS:
        assert update("post", 32, seed) > 5 * update("deepnorm", 32, seed)


@pytest.mark.parametrize(("placement", "least", "most"), [("post", 0.99, 1.01), ("pre", 10, 100)])
def test_the_stream_keeps_its_variance_in_post_ln_and_grows_in_pre_ln(placement, least, most):
    for seed in SEEDS:
        made, ids = model(placement, 16, seed)
        seen = []
        for block in made.stack.blocks:
            block.register_forward_hook(
                lambda module, args, stream, seen=seen: seen.append(stream.total.var(-1).mean().item())
            )
        made.hidden(ids)
        assert least < seen[-1] / seen[0] < most


@pytest.mark.parametrize("placement", ["deepnorm", "pre"])
def test_48_layers_take_50_steps_without_warm_up(placement):
    torch.manual_seed(0)
    text = torch.tensor(list(Path(os.__file__).read_bytes()))
    made = nk.LanguageModel(vocab=256, dim=32, depth=48, heads=4, placement=placement, context=32)
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3)
    losses = []
    for _ in range(50):
        starts = torch.randint(len(text) - 33, (8,))
        loss = made.loss(torch.stack([text[s : s + 32] for s in starts]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(value == value for value in losses)
    assert mean(losses[-5:]) < losses[0] - 1
