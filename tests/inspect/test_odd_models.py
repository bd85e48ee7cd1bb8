"""Models that nobody here had in mind: exported, mapped, recurrent, odd in what they take and give."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import normkit as nk
from normkit.errors import NormkitError


class Block(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.n, self.f = nn.LayerNorm(dim), nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.f(self.n(x))


def model():
    return nn.Sequential(nn.Linear(16, 16), Block(), Block(), nn.LayerNorm(16), nn.Linear(16, 4))


PLACES = ["pre", "pre", "final"]
X = torch.randn(4, 6, 16)


def places(net, batch=X):
    return [site.place for site in nk.inspect(net, batch)]


def test_an_exported_program_names_its_norms_by_their_weights():
    exported = torch.export.export(model(), (X,)).module()
    found = nk.inspect(exported, X)
    assert [(s.path, s.place) for s in found] == [
        ("1.n:layer_norm", "pre"),
        ("2.n:layer_norm", "pre"),
        ("3:layer_norm", "final"),
    ]


def test_a_traced_graph_is_as_the_model_it_came_from():
    assert places(torch.fx.symbolic_trace(model())) == PLACES


def test_checkpoints_and_vmap_are_looked_into():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = Block()

        def forward(self, x):
            return checkpoint(self.b, x, use_reentrant=False)

    class Mapped(Checkpointed):
        def forward(self, x):
            return torch.func.vmap(self.b)(x)

    assert places(Checkpointed()) == ["pre"]
    assert places(Mapped()) == ["pre"]


def test_a_recurrent_sublayer_is_one():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.n, self.r, self.o = nn.LayerNorm(16), nn.LSTM(16, 16, batch_first=True), nn.Linear(16, 3)

        def forward(self, x):
            return self.o(x + self.r(self.n(x))[0])

    assert places(Recurrent()) == ["pre"]


class Functions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x):
        x = torch.batch_norm(x, None, None, self.mean, self.var, self.training, 0.1, 1e-3, False)
        x = torch.layer_norm(x, (16,), self.weight)
        x = F.batch_norm(F.group_norm(x, 3), self.mean, self.var, training=self.training)
        return torch.ops.aten.rms_norm(x, [16], self.weight, 1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_functions_of_every_origin_are_read(training):
    found = nk.inspect(Functions().train(training), X)
    assert [(s.name, s.spec.kind, s.spec.eps) for s in found] == [
        ("batch_norm", "batch", 1e-3),
        ("layer_norm", "layer", 1e-5),
        ("group_norm", "group", 1e-5),
        ("batch_norm", "batch", 1e-5),
        ("rms_norm", "rms", 1e-6),
    ]
    assert found[0].training is training


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_every_dtype_is_examined(dtype):
    assert nk.doctor(model().to(dtype), X.to(dtype)).ok


@pytest.mark.parametrize(
    "x", [X[:0], X[:1, :1], X * float("nan"), X * float("inf")], ids=["0", "1", "nan", "inf"]
)
def test_no_rows_one_row_and_no_numbers_are_examined(x):
    assert places(model(), x) == PLACES
    assert nk.doctor(model(), x).ok


def test_modes_around_it_make_no_difference():
    with torch.inference_mode():
        assert places(model()) == PLACES
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert places(model()) == PLACES
    with torch.device("meta"):
        net = model()
    assert places(net) == PLACES


def test_what_a_model_takes_and_gives_may_be_odd():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

        def forward(self, *, inputs, flag=None):
            y = self.norm(self.linear(inputs["x"]))
            return {"out": [y, {"mean": y.mean()}]}

    assert places(Odd(), {"inputs": {"x": X}, "flag": object()}) == ["after-linear"]
    assert places(nn.LayerNorm(16)) == ["other"]


def test_a_lazy_model_is_not_initialised_behind_its_back():
    lazy = nn.Sequential(nn.LazyLinear(8), nn.LayerNorm(8))
    with pytest.raises(NormkitError, match=r"has lazy modules.*\n.*call model\(batch\) once"):
        nk.inspect(lazy, X)
    assert type(lazy[0]) is nn.LazyLinear


def test_a_norm_with_an_activation_of_its_own_is_one():
    class NormAct(nn.BatchNorm2d):
        def __init__(self, n):
            super().__init__(n)
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(super().forward(x))

    net = nn.Sequential(nn.Conv2d(3, 8, 1, bias=False), NormAct(8))
    for training in (True, False):
        (site,) = nk.inspect(net.train(training), torch.randn(8, 3, 4, 4))
        assert (site.path, site.spec.kind, site.place) == ("1", "batch", "after-conv")


def test_other_threads_are_not_traced():
    import threading

    class Threaded(nn.Module):
        def __init__(self):
            super().__init__()
            self.mine, self.theirs = nn.LayerNorm(16), nn.LayerNorm(16)

        def forward(self, x):
            worker = threading.Thread(target=lambda: self.theirs(x))
            worker.start()
            worker.join()
            return self.mine(x)

    assert [s.path for s in nk.inspect(Threaded(), X)] == ["mine"]
