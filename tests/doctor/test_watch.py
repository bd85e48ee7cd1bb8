"""``nk.Doctor`` in a training loop: when it looks, what it says, and that it changes nothing."""

import copy
import gc
import logging
import random
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import normkit as nk


class Net(nn.Module):
    """Two residual layers, with what has a state or draws random numbers."""

    def __init__(self, eps=1e-5):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        self.norms = nn.ModuleList(nn.LayerNorm(8, eps=eps) for _ in range(2))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8)) for _ in range(2)
        )
        self.final = nn.LayerNorm(8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        x = self.stem(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(self.final(x))


@pytest.fixture
def lines():
    return []


def train(model, steps, watch=None, before=lambda step: None):
    """The losses; ``watch(model, optimizer)`` gives what steps beside the optimizer."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = watch(model, optimizer) if watch is not None else None
    losses = []
    for step in range(1, steps + 1):
        before(step)
        loss = model(torch.randn(64, 4)).square().mean()
        loss.backward()
        if doctor is not None:
            doctor.step()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, doctor


def test_it_looks_at_the_first_step_and_at_every_nth():
    for every, expected in ((1, [1, 2, 3, 4, 5, 6, 7]), (2, [1, 2, 4, 6]), (3, [1, 3, 6]), (100, [1])):
        looked = []

        class Watched(nk.Doctor):
            def step(self, looked=looked):
                if super().step() is not None:
                    looked.append(self.steps)

        train(Net(), 7, lambda model, _, every=every: Watched(model, every=every))
        assert looked == expected


def test_a_hook_is_there_only_for_the_steps_at_which_it_looks():
    model, hooks = Net(), []
    train(
        model, 8, lambda m, _: nk.Doctor(m, every=4), lambda step: hooks.append(len(model._forward_pre_hooks))
    )
    assert hooks == [1, 0, 0, 1, 0, 0, 0, 1]
    assert not model._forward_pre_hooks
    assert all(not child._forward_pre_hooks for child in model.modules())


def test_training_is_the_same_to_the_bit_with_and_without_it():
    torch.manual_seed(1)
    plain = Net()
    watched = copy.deepcopy(plain)
    expected, _ = train(plain, 6)
    losses, doctor = train(watched, 6, lambda m, o: nk.Doctor(m, o, every=1, loss=lambda y: y.mean()))
    assert doctor.report is not None
    assert losses == expected
    for ours, theirs in zip(watched.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_look_leaves_gradients_modes_and_random_states_as_they_were():
    model = Net()
    model.final.eval()
    doctor = nk.Doctor(model, loss=lambda y: y.mean())
    model(torch.randn(8, 4)).sum().backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters()}
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert doctor.step() is not None
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]
    assert all(torch.equal(p.grad, grads[n]) for n, p in model.named_parameters())
    assert all(torch.equal(b, buffers[n]) for n, b in model.named_buffers())
    assert model.training
    assert not model.final.training
    assert torch.is_grad_enabled()


def test_what_is_new_is_said_once_and_layers_that_are_alike_in_one_line(lines):
    model = Net(eps=0.1)

    def worsen(step):
        if step == 4:
            model.final.eps = 0.5

    _, doctor = train(model, 6, lambda m, _: nk.Doctor(m, every=2, select="NK204", out=lines.append), worsen)
    assert len(lines) == 2
    assert lines[0].startswith("step 1: error NK204 absurd-eps at norms.* (2 of them): ")
    assert " fix: " in lines[0]
    assert f"({__file__}:" in lines[0]
    assert lines[1].startswith("step 4: error NK204 absurd-eps at final: ")
    assert [f.where for f in doctor.findings] == ["norms.0", "norms.1", "final"]
    assert doctor.report.count("error") == 3


def test_lines_go_to_logging_at_the_level_of_the_finding(caplog):
    with caplog.at_level(logging.INFO, "normkit.doctor"):
        train(Net(eps=0.1), 1, lambda m, _: nk.Doctor(m, select="NK204"))
    assert [(r.name, r.levelname) for r in caplog.records] == [("normkit.doctor", "ERROR")]


def test_the_line_is_that_of_the_model_and_not_of_the_loop(lines):
    """A norm that nn.Sequential calls is called by nobody's code."""
    train(
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, eps=0.1)),
        1,
        lambda m, _: nk.Doctor(m, out=lines.append),
    )
    assert "NK204" in lines[0]
    assert __file__ not in lines[0]


def test_the_groups_of_the_optimizer_are_looked_at(lines):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    train(model, 1, lambda m, _: nk.Doctor(m, optimizer, select="NK501", out=lines.append))
    assert any("decayed-norm at norms.* (2 of them)" in line for line in lines)


def test_scalars_are_few_and_go_to_a_writer():
    class Writer(list):
        def add_scalar(self, name, value, step):
            self.append((name, value, step))

    _, doctor = train(Net(eps=0.1), 3, lambda m, _: nk.Doctor(m, every=3, loss=lambda y: y.mean()))
    scalars, writer = doctor.scalars(), Writer()
    names = (
        "errors",
        "warnings",
        "stream_rms_last",
        "stream_growth",
        "largest_activation",
        "grad_first_last",
    )
    assert list(scalars) == [f"normkit/{name}" for name in names]
    assert scalars["normkit/errors"] == 2
    sizes = [m for m in scalars.values() if m > 0]
    assert len(sizes) >= 5
    doctor.log_to(writer, 17)
    assert writer == [(name, value, 17) for name, value in scalars.items()]
    doctor.log_to(writer)
    assert writer[-1][2] == 3


def test_the_gradient_of_the_stream_needs_a_loss_which_the_model_may_return():
    class WithLoss(Net):
        def forward(self, x):
            return type("Output", (), {"loss": super().forward(x).mean(), "square": lambda self: self.loss})()

    for model, loss, is_known in (
        (Net(), None, False),
        (Net(), lambda y: y.sum(), True),
        (WithLoss(), None, True),
    ):
        _, doctor = train(model, 1, lambda m, _, loss=loss: nk.Doctor(m, loss=loss))
        assert ("normkit/grad_first_last" in doctor.scalars()) == is_known


def test_no_activation_is_held_after_a_look():
    model, alive = Net(), []
    model.final.register_forward_hook(lambda module, args, output: alive.append(weakref.ref(args[0])))
    _, doctor = train(model, 1, lambda m, _: nk.Doctor(m, loss=lambda y: y.mean()))
    gc.collect()
    assert len(alive) == 3  # the step, the look, its gradients
    assert doctor.report is not None
    assert [reference() for reference in alive] == [None] * 3


def test_after_close_it_looks_no_more_and_the_model_has_no_hook():
    model = Net()
    with nk.Doctor(model, every=1) as doctor:
        assert model._forward_pre_hooks
    assert not model._forward_pre_hooks
    model(torch.randn(8, 4))
    assert doctor.step() is None
    assert not model._forward_pre_hooks


def test_mistakes_are_told_when_it_is_built():
    for wrong, text in (
        (lambda: nk.Doctor([nn.Linear(2, 2)]), "Doctor got list"),
        (lambda: nk.Doctor(Net(), every=0), "every= got 0.\n  expected: an integer of at least 1"),
        (lambda: nk.Doctor(Net(), select="NK999"), "there is no rule 'NK999'"),
    ):
        with pytest.raises(nk.NormkitError) as error:
            wrong()
        assert text in str(error.value)
