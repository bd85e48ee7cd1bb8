"""Dead gains (NK502) in a training loop: by the gradients that are there, at three looks in a row."""

import pytest
import torch
from torch import nn

import normkit as nk


class Dead(nn.Sequential):
    """Gains of 0 before a ReLU, which passes no gradient at 0."""

    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1))
        nn.init.zeros_(self[1].weight)


@pytest.fixture
def lines():
    return []


def train(model, steps, lines, *, every=1, before=lambda step: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = nk.Doctor(model, every=every, select="NK502", out=lines.append)
    for step in range(1, steps + 1):
        before(step)
        model(torch.randn(64, 4)).square().mean().backward()
        doctor.step()
        optimizer.step()
        optimizer.zero_grad()


def test_a_gain_is_dead_after_three_looks_without_a_gradient(lines):
    train(Dead(), 8, lines, every=2)
    assert len(lines) == 1
    assert lines[0].startswith("step 4: warning NK502 dead-gamma at 1: 8 of 8 gains")


def test_looks_without_a_gradient_count_in_a_row(lines):
    model = Dead()

    @torch.no_grad()
    def revive(step):
        model[1].weight.zero_()
        model[1].bias.fill_(1.0 if step == 3 else 0.0)

    train(model, 5, lines, before=revive)
    assert lines == []


def test_half_of_the_gains_may_be_dead_while_others_get_gradients(lines):
    model = Dead()

    @torch.no_grad()
    def half(step):
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([1.0, 0.0] * 4))

    train(model, 3, lines, before=half)
    assert [line.partition(": warning ")[2][:38] for line in lines] == [
        "NK502 dead-gamma at 1: 4 of 8 gains ar"
    ]


def test_a_gain_of_zero_that_gets_a_gradient_is_not_dead(lines):
    model = Dead()
    model[2] = nn.Identity()
    train(model, 5, lines, before=lambda step: nn.init.zeros_(model[1].weight))
    assert lines == []


@pytest.mark.parametrize("set_to_none", [True, False])
def test_without_gradients_nothing_is_dead(set_to_none, lines):
    model = Dead()
    doctor = nk.Doctor(model, every=1, select="NK502", out=lines.append)
    for _ in range(4):
        model(torch.randn(8, 4)).sum().backward()
        model.zero_grad(set_to_none=set_to_none)
        assert doctor.step() is not None
    assert lines == []


def test_a_gradient_that_is_no_number_is_a_gradient(lines):
    model = Dead()
    doctor = nk.Doctor(model, every=1, select="NK502", out=lines.append)
    for _ in range(4):
        model(torch.randn(8, 4)).sum().backward()
        model[1].weight.grad.fill_(torch.nan)
        doctor.step()
    assert lines == []
