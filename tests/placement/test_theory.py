"""What the papers say about a stack at initialisation, measured with three seeds."""

import functools
import os
from pathlib import Path

import pytest
import torch

import normkit as nk
from normkit_studies import amplification as shaken
from normkit_studies import gradient_by_depth
from normkit_studies.gradient_by_depth import DEPTHS, slope, untrained

SEEDS = (0, 1, 2)


def gradient(placement, depth, seed):
    return gradient_by_depth.run({"placement": placement, "depth": depth, "seed": seed})["gradient"]


def amplification(placement, depth, seed):
    return shaken.run({"placement": placement, "depth": depth, "seed": seed})["moved"]


def update(placement, depth, seed):
    """Wang et al. 2022: how far the output moves in one step of gradient descent."""
    made, ids = untrained(placement, depth, seed)
    before = made.hidden(ids).detach()
    made.loss(ids).backward()
    with torch.no_grad():
        for weight in made.stack.blocks.parameters():
            weight -= 1e-3 * weight.grad
        return (made.hidden(ids) - before).square().sum(-1).mean().sqrt().item()


@functools.cache
def slopes(quantity, placement):
    return [slope(DEPTHS, [quantity(placement, depth, seed) for depth in DEPTHS]) for seed in SEEDS]


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
        made, ids = untrained(placement, 16, seed)
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
