"""What a look runs: the call that the loop made, in whatever way it was made."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

import normkit as nk
from normkit.doctor.last_call import LastCall


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4, bias=False)
        self.norm = nn.LayerNorm(4, eps=0.1)

    def forward(self, x, *, scale=None, mask=None):
        x = self.norm(self.linear(x))
        return x if scale is None else x * scale


def rows(doctor):
    """Of the batch that was looked at."""
    return doctor.report.inspection.sites[0].shape[0]


def step(doctor, output):
    output.sum().backward()
    return doctor.step()


def test_of_several_calls_the_last_with_gradients_counts():
    model = Net()
    doctor = nk.Doctor(model, every=1)
    model(torch.randn(3, 4))
    last = model(torch.randn(5, 4))
    with torch.no_grad():
        model(torch.randn(7, 4))
    step(doctor, last)
    assert rows(doctor) == 5


def test_a_call_without_gradients_is_better_than_none():
    model = Net()
    doctor = nk.Doctor(model)
    with torch.no_grad():
        model(torch.randn(7, 4))
    assert doctor.step() is not None
    assert rows(doctor) == 7


def test_gradients_may_be_accumulated_over_several_calls():
    model = Net()
    doctor = nk.Doctor(model, every=2)
    for _ in range(4):
        for size in (2, 3):
            model(torch.randn(size, 4)).sum().backward()
        doctor.step()
    assert rows(doctor) == 3


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {"x": 0}), ((0,), {}), ((0,), {"scale": 2.0}), ((), {"x": 0, "scale": 2.0, "mask": None})],
)
def test_arguments_may_have_names_or_not(args, kwargs):
    x = torch.randn(6, 4)
    model = Net()
    doctor = nk.Doctor(model)
    output = model(*(x for _ in args), **{k: x if k == "x" else v for k, v in kwargs.items()})
    assert step(doctor, output) is not None
    assert rows(doctor) == 6


def test_names_may_be_any():
    class Loose(Net):
        def forward(self, x, **options):
            return super().forward(x * options["factor"])

    model = Loose()
    assert step(nk.Doctor(model), model(torch.randn(6, 4), factor=2.0)) is not None


def test_a_model_may_take_a_dict_as_its_one_argument():
    class Dict(Net):
        def forward(self, batch):
            return super().forward(batch["x"])

    model = Dict()
    doctor = nk.Doctor(model)
    assert step(doctor, model({"x": torch.randn(6, 4)})) is not None


def test_unnamed_beside_named_arguments_are_refused_in_a_line(caplog):
    class Star(Net):
        def forward(self, *xs, scale=1.0):
            return super().forward(xs[0]) * scale

    model = Star()
    assert step(nk.Doctor(model), model(torch.randn(6, 4), scale=2.0)) is None
    assert "Star is called with *args and with keywords" in caplog.text


def test_a_child_is_looked_at_where_the_model_itself_is_not_called():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.small, self.net = nn.Linear(4, 4), Net()

        def training_step(self, x):
            return self.net(self.small(x))

    model = Outer()
    doctor = nk.Doctor(model)
    step(doctor, model.training_step(torch.randn(6, 4)))
    assert [f.where for f in doctor.findings] == ["net.norm"]


def test_the_look_is_cast_as_the_call_was():
    model = Net()
    doctor = nk.Doctor(model)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(8, 4)).sum()
    loss.backward()
    doctor.step()
    assert doctor.report.inspection.sites[0].dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def test_a_look_leaves_nothing_in_the_cache_of_autocast():
    """There, weights that were cast without gradients would stay until the block ends: pytorch#112583."""

    class Asking(Net):
        def forward(self, x):
            caches.append(torch.is_autocast_cache_enabled())
            return super().forward(x)

    caches, model = [], Asking()
    doctor = nk.Doctor(model)
    with torch.autocast("cpu", torch.bfloat16):
        step(doctor, model(torch.randn(8, 4)))
        assert torch.is_autocast_cache_enabled()
    assert caches == [True, False]


def test_scaled_gradients_are_looked_at_and_stay_scaled():
    model, lines = Net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    doctor = nk.Doctor(model, optimizer, every=1, ignore="NK204", out=lines.append)
    for _ in range(3):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(8, 4)).square().mean()
        scaler.scale(loss).backward()
        before = model.norm.weight.grad.clone()
        assert doctor.step() is not None
        assert torch.equal(model.norm.weight.grad, before)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == 1024.0
    assert lines == []


def test_a_watched_model_can_be_pickled_and_copied_and_the_copies_are_not_heard():
    model = Net()
    doctor = nk.Doctor(model)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    output = model(torch.randn(5, 4))
    for other in copies:
        other(torch.randn(7, 4))
    step(doctor, output)
    assert rows(doctor) == 5


def test_two_doctors_hear_the_same_call():
    model = Net()
    first, second = nk.Doctor(model), nk.Doctor(model, every=1)
    output = model(torch.randn(5, 4))
    assert step(first, output) is not None
    assert second.step() is not None
    assert (rows(first), rows(second)) == (5, 5)


def test_a_forward_that_stood_in_for_another_is_not_called_again():
    """As Lightning does under DDP: training_step comes as the forward of the module."""
    model = Net()
    calls = LastCall(model)
    calls.start()
    model.forward = lambda batch, index: Net.forward(model, batch)
    model(torch.randn(5, 4), 0)
    del model.forward
    assert calls.take() is None
    calls.start()
    model(torch.randn(5, 4))
    assert calls.take() is not None


def test_a_doctor_that_is_forgotten_keeps_no_model_alive():
    model = Net()
    nk.Doctor(model)
    reference = weakref.ref(model)
    model(torch.randn(5, 4))
    del model
    gc.collect()
    assert reference() is None


def test_a_mask_without_a_name_is_known_as_one_under_a_wrapper():
    class Leaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x, attention_mask):
            return self.norm(x.transpose(1, 2))

    x, mask = torch.randn(8, 6, 4), torch.ones(8, 6, dtype=torch.long)
    mask[:4, 3:] = 0
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend="eager")):
        report = nk.doctor(wrap(Leaky()), (x, mask), select="NK304")
        assert [f.where for f in report.findings] == ["norm"]
