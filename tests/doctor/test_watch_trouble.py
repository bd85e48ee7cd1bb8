"""A training that goes on whatever the doctor meets: compilers, failures, interrupts, no call at all."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import normkit as nk


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4, bias=False)
        self.norm = nn.LayerNorm(4, eps=0.1)

    def forward(self, x):
        return self.norm(self.linear(x))


def sequential():
    return nn.Sequential(nn.Linear(4, 4, bias=False), nn.LayerNorm(4, eps=0.1))


def step(doctor, output):
    output.sum().backward()
    return doctor.step()


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("how", ["the compiled", "the bare", "compiled in place", "compiled in place later"])
def test_a_compiled_model_is_looked_at_and_compiled_once(how, fullgraph, caplog):
    counter, model = CompileCounter(), Net()
    settings = {"backend": counter, "fullgraph": fullgraph}
    called = model
    if how in ("the compiled", "the bare"):
        called = torch.compile(model, **settings)
    elif how == "compiled in place":
        model.compile(**settings)
    doctor = nk.Doctor(called if how == "the compiled" else model, every=3)
    if how == "compiled in place later":
        model.compile(**settings)
    looked = [step(doctor, called(torch.randn(8, 4))) is not None for _ in range(7)]
    assert looked == [True, False, True, False, False, True, False]
    assert counter.frame_count == 1
    assert [f.where for f in doctor.findings] == ["norm"]
    assert "could not" not in caplog.text


@pytest.mark.usefixtures("fresh_compiler")
def test_a_graph_that_must_be_whole_stays_so_where_torch_traces_hooks():
    """nn.Sequential's own call is traced: then there is nothing to hear, and nothing breaks."""
    model, lines = sequential(), []
    doctor = nk.Doctor(model, every=1, out=lines.append)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert [step(doctor, compiled(torch.randn(8, 4))) for _ in range(3)] == [None] * 3
    assert len(lines) == 1
    assert "Sequential was not called since the step before, or only in compiled code" in lines[0]
    doctor = nk.Doctor(compiled, every=1, out=lines.append)
    assert step(doctor, compiled(torch.randn(8, 4))) is not None


def test_a_model_that_was_never_called_gets_one_clear_line(caplog):
    doctor = nk.Doctor(Net(), every=1)
    assert [doctor.step() for _ in range(3)] == [None] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "step 1: could not look: Net was not called since the step before, or only in compiled code. "
        "Give Doctor what the loop calls: the compiled or wrapped model, if it is."
    ]


def test_an_examination_that_fails_is_one_line_and_training_goes_on(caplog):
    class Once(Net):
        def forward(self, x):
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls % 2 == 0:
                raise RuntimeError("no more\nof this")
            return super().forward(x)

    model = Once()
    doctor = nk.Doctor(model, every=1)
    for _ in range(3):
        model.calls = 0
        assert step(doctor, model(torch.randn(8, 4))) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "could not look: Once(" in record.getMessage()
    assert "raised RuntimeError: no more of this" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_an_interrupt_passes():
    class Interrupted(Net):
        is_second = False

        def forward(self, x):
            if self.is_second:
                raise KeyboardInterrupt
            return super().forward(x)

    model = Interrupted()
    doctor = nk.Doctor(model)
    model(torch.randn(8, 4)).sum().backward()
    model.is_second = True
    with pytest.raises(KeyboardInterrupt):
        doctor.step()


def test_a_loss_that_fails_costs_only_its_gradients(caplog):
    def loss(output):
        raise ValueError("no loss today")

    model = Net()
    doctor = nk.Doctor(model, every=1, loss=loss, select="NK204")
    for _ in range(2):
        assert step(doctor, model(torch.randn(8, 4))).count("error") == 1
    said = [record.getMessage() for record in caplog.records]
    assert sum("no gradients of the stream" in line for line in said) == 1
    assert any("no loss today" in line for line in said)
