"""A look changes nothing: neither the model nor the batch nor the random numbers to come."""

import copy
import random

import numpy
import pytest
import torch
from sick import CASES
from sick.blocks import GPT
from sick.case import tokens
from torch import nn

import normkit as nk
from normkit.errors import NormkitError


class Restless(nn.Module):
    """Its forward moves everything that a forward can move, and stops where it is told to."""

    def __init__(self, stop=None):
        super().__init__()
        self.conv, self.bn, self.drop = nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.norm, self.frozen = nn.LayerNorm(6), nn.BatchNorm1d(4).eval()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(4))
        self.weight = nn.Parameter(torch.ones(4, 1))
        self.cache, self.calls, self.stop = {"k": 1}, 0, stop
        self.history, self.shelf, self.last = [], {"k": [1]}, torch.zeros(4)

    def forward(self, x, memo):
        self.steps += 1
        self.calls += 1
        self.scratch = x.mean()
        self.cache = {"k": 2}
        self.history.append(x)
        self.shelf["k"].append(2)
        self.shelf["v"] = 3
        self.last += 1
        self.average = 0.9 * self.average + 0.1 * x.mean((0, 2))
        self.train(not self.training)
        x.mul_(2)
        memo["seen"].append(1)
        with torch.no_grad():
            self.weight.mul_(0.5)
        random.random(), numpy.random.rand()
        y = self.frozen(self.bn(self.drop(self.conv(x))))
        y = self.norm(self.weight * y + torch.randn(()))
        if self.stop is not None:
            raise self.stop
        return y.square().mean()


def test_that_model_does_move_when_it_is_called():
    model, batch, _ = prepared()
    before, states = snapshot(model), randomness()
    model(**batch)
    after = snapshot(model)
    for part in (0, 3):
        with pytest.raises(AssertionError):
            assert_same([*(x if k == part else {} for k, x in enumerate(before))], after)
    with pytest.raises(AssertionError):
        assert_same_randomness(states)


def snapshot(model):
    tensors = {n: t.detach().clone() for n, t in (*model.named_parameters(), *model.named_buffers())}
    grads = {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    identities = {n: id(t) for n, t in (*model.named_parameters(), *model.named_buffers())}
    attributes = {
        name: {k: v for k, v in vars(m).items() if k not in ("_parameters", "_buffers", "_modules")}
        for name, m in model.named_modules()
    }
    kept = {name: {k: told(v) for k, v in own.items()} for name, own in attributes.items()}
    flags = {n: p.requires_grad for n, p in model.named_parameters()}
    return tensors, grads, identities, kept, flags


def told(value):
    """A value as something that can be compared, and does not move with it."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {k: told(v) for k, v in value.items()}
    return [told(v) for v in value] if isinstance(value, list) else value


def assert_same(before, after):
    for old, new in zip(before[:2], after[:2], strict=True):
        assert old.keys() == new.keys()
        for name, value in old.items():
            same = torch.equal(value, new[name]) if value is not None else new[name] is None
            assert same, name
    assert before[2:] == after[2:]


def randomness():
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()


def assert_same_randomness(before):
    now = randomness()
    assert torch.equal(before[0], now[0])
    assert before[1] == now[1]
    assert (before[2] == now[2]).all()


def prepared(stop=None):
    torch.manual_seed(0)
    model = Restless(stop)
    handles = [model.norm.register_forward_hook(hook), model.register_forward_pre_hook(pre_hook)]
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    model.conv.bias.requires_grad_(False)
    return model, {"x": torch.randn(40, 4, 8), "memo": {"seen": []}}, handles


def hook(module, args, output):
    return output + 0


def pre_hook(module, args):
    return None


def look(verb, model, batch):
    if verb == "inspect":
        return nk.inspect(model, batch)
    return nk.doctor(
        model, batch, loss=lambda output: output, optimizer=torch.optim.SGD(model.parameters(), 0.1)
    )


@pytest.mark.parametrize("verb", ["inspect", "doctor"])
@pytest.mark.parametrize("training", [False, True])
def test_model_batch_and_random_numbers_are_as_before(verb, training):
    model, batch, _ = prepared()
    model.train(training)
    model.frozen.eval()
    before, kept, states = snapshot(model), copy.deepcopy(batch), randomness()
    look(verb, model, batch)
    assert_same(before, snapshot(model))
    assert torch.equal(batch["x"], kept["x"])
    assert batch["memo"] == kept["memo"]
    assert_same_randomness(states)
    assert "scratch" not in vars(model)


@pytest.mark.parametrize("verb", ["inspect", "doctor"])
@pytest.mark.parametrize(
    ("stop", "raised"),
    [
        (ValueError("no"), NormkitError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (SystemExit(3), SystemExit),
    ],
    ids=["an exception", "Ctrl-C", "exit"],
)
def test_also_when_forward_does_not_come_to_its_end(verb, stop, raised):
    model, batch, _ = prepared(stop)
    before, kept, states = snapshot(model), batch["x"].clone(), randomness()
    with pytest.raises(raised):
        look(verb, model, batch)
    assert_same(before, snapshot(model))
    assert torch.equal(batch["x"], kept)
    assert batch["memo"] == {"seen": []}
    assert_same_randomness(states)


@pytest.mark.parametrize(
    "stop", [None, ValueError("no"), KeyboardInterrupt()], ids=["", "exception", "Ctrl-C"]
)
def test_torch_is_as_before_too(stop):
    module_call, threads = nn.Module.__call__, torch.get_num_threads()
    fast_path, grad = torch.backends.mha.get_fastpath_enabled(), torch.is_grad_enabled()
    hooks = len(nn.modules.module._global_forward_pre_hooks)
    model, batch, _ = prepared(stop)
    try:
        nk.doctor(model, batch)
    except (NormkitError, KeyboardInterrupt):
        assert stop is not None
    assert nn.Module.__call__ is module_call
    assert torch.get_num_threads() == threads
    assert torch.backends.mha.get_fastpath_enabled() == fast_path
    assert torch.is_grad_enabled() == grad
    assert len(nn.modules.module._global_forward_pre_hooks) == hooks
    assert torch.overrides._get_current_function_mode_stack() == []


def test_hooks_still_work_and_can_be_removed():
    model, batch, handles = prepared()
    nk.doctor(model, batch)
    for handle in handles:
        handle.remove()
    assert not model.norm._forward_hooks
    assert not model._forward_pre_hooks


def test_a_loss_that_fails_changes_nothing_either():
    model = GPT()
    before, states = snapshot(model), randomness()
    with pytest.raises(NormkitError, match="raised ZeroDivisionError"):
        nk.doctor(model, tokens(), loss=lambda output: 1 / 0)
    assert_same(before, snapshot(model))
    batch = tokens()
    torch.set_rng_state(states[0])
    with pytest.raises(KeyboardInterrupt):
        nk.doctor(model, batch, loss=interrupted)
    assert_same(before, snapshot(model))
    assert_same_randomness(states)


def interrupted(output):
    raise KeyboardInterrupt


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.code}-{c.name}")
def test_no_sick_model_is_changed_by_its_examination(case):
    model = case.model(case.modes[-1])
    batch, options = case.inputs(), case.given(model)
    before, kept = snapshot(model), copy.deepcopy(batch)
    groups = [dict(g) for g in options["optimizer"].param_groups] if "optimizer" in options else None
    states = randomness()
    nk.doctor(model, batch, **options)
    assert_same_randomness(states)
    assert_same(before, snapshot(model))
    assert_equal(batch, kept)
    assert groups is None or [dict(g) for g in options["optimizer"].param_groups] == groups


def assert_equal(a, b):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key])
    else:
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
