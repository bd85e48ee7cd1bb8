"""The short way of BatchNorm, InstanceNorm and GroupNorm: the same bits as the long one, or it declines."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from normkit import functional as F
from normkit.kernels import fast
from normkit.kernels.cpu import eager

pytestmark = pytest.mark.skipif(eager.MODULE is None, reason=f"_eager is missing: {eager.MISSING}")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SHAPES = [(4, 6), (1, 6, 5), (3, 6, 5, 7), (2, 6, 1, 1), (2, 4, 3, 2, 5)]


def batch(training):
    def call(x, w, b, mean, var, **more):
        return F.batch_norm(x, mean, var, w, b, training, 0.3, **more)

    return call


CALLS = {
    "batch_norm, training": batch(True),
    "batch_norm, evaluation": batch(False),
    "instance_norm": lambda x, w, b, mean, var, **more: F.instance_norm(x, None, None, w, b, **more),
    "instance_norm, given": lambda x, w, b, mean, var, **more: F.instance_norm(
        x, mean, var, w, b, use_input_stats=False, **more
    ),
    "group_norm": lambda x, w, b, mean, var, **more: F.group_norm(x, 2, w, b, **more),
    "group_norm, one group": lambda x, w, b, mean, var, **more: F.group_norm(x, 1, w, b, **more),
}


def inputs(shape, dtype, layout="contiguous", grad=True, params=None):
    torch.manual_seed(0)
    channels = shape[1]
    x = torch.randn(shape).to(dtype)
    if layout == "channels_last":
        x = x.to(memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
    w, b, mean = torch.randn(3, channels).to(params or dtype)
    found = [x, w, b, mean, mean.abs() + 0.5]
    return [t.clone().requires_grad_(grad and k < 3) for k, t in enumerate(found)]


@pytest.fixture
def taken(monkeypatch):
    """How many calls took the short way."""
    count = []
    own = fast.channels

    def counted(*call):
        y = own(*call)
        count.append(y is not None)
        return y

    monkeypatch.setattr(fast, "channels", counted)
    return count


def results(name, tensors):
    y = CALLS[name](*tensors)
    grads = torch.autograd.grad(y, tensors[:3], torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.dtype))
    return [y.detach(), *grads, *tensors[3:]], y.stride()


def has_spread(name, shape):
    """An InstanceNorm needs more than one number a channel of a sample."""
    return name != "instance_norm" or math.prod(shape[2:]) > 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("name", "shape"), [(n, s) for n in CALLS for s in SHAPES if has_spread(n, s)], ids=str
)
def test_it_computes_the_bits_of_the_long_way(name, shape, dtype, taken, monkeypatch):
    for layout in ("contiguous", "channels_last")[: 2 if len(shape) > 3 else 1]:
        short, strides = results(name, inputs(shape, dtype, layout))
        assert taken[-1], f"{name} {shape} {layout} was declined"
        with monkeypatch.context() as m:
            m.setattr(fast, "channels", lambda *call: None)
            long, expected = results(name, inputs(shape, dtype, layout))
        assert strides == expected
        for got, true in zip(short, long, strict=True):
            assert torch.equal(got, true)


@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_both_orders(name, taken):
    tensors = inputs((3, 4, 5), torch.float64)
    own = [t.clone() for t in tensors[3:]]

    def function(x, w, b):
        return CALLS[name](x, w, b, *(t.clone() for t in own))

    assert gradcheck(function, tensors[:3])
    assert gradgradcheck(function, tensors[:3])
    assert all(taken)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("place", ["fresh", "in place"])
def test_out_is_written_counted_and_returned(name, place, taken):
    tensors = inputs((3, 6, 4, 4), torch.float32, "channels_last", grad=False)
    expected = CALLS[name](*[t.clone(memory_format=torch.preserve_format) for t in tensors])
    out = tensors[0] if place == "in place" else torch.empty_like(tensors[0])
    version = out._version
    assert CALLS[name](*tensors, out=out) is out
    assert taken == [True, True]
    assert out._version == version + 1
    assert torch.equal(out, expected)


def test_running_statistics_are_moved_counted_and_noticed_by_autograd(taken):
    x, w, b, mean, var = inputs((8, 4, 3), torch.float32)
    seen, batches = (mean * w.detach().requires_grad_()).sum(), torch.zeros((), dtype=torch.long)
    theirs = [mean.clone(), var.clone()]
    F.batch_norm(x, mean, var, w, b, True, 0.3, num_batches_tracked=batches)
    torch.nn.functional.batch_norm(x.detach(), *theirs, None, None, True, 0.3)
    assert taken == [True]
    assert batches == 1
    torch.testing.assert_close([mean, var], theirs)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        seen.backward()


def overlapping():
    memory = torch.randn(3 * 4 * 5 + 4)
    return {"x": torch.randn(3, 4, 5), "w": memory[-6:-2], "out": memory[:60].view(3, 4, 5)}


DECLINED = {
    "strides of its own": {"x": torch.randn(3, 5, 4).transpose(1, 2)},
    "integers": {"x": torch.ones(3, 4, 5, dtype=torch.int32)},
    "one channel": {"x": torch.randn(3, 1, 5), "w": None, "b": None, "mean": None, "var": None},
    "nothing": {"x": torch.randn(0, 4, 5)},
    "one number a channel": {"x": torch.randn(1, 4, 1)},
    "too few weights": {"w": torch.ones(3)},
    "a weight of two axes": {"w": torch.ones(4, 1)},
    "integer weights": {"w": torch.ones(4, dtype=torch.int64)},
    "one running statistic": {"mean": None},
    "no momentum": {"momentum": None},
    "no momentum, and nothing to move": {"momentum": None, "mean": None, "var": None},
    "running statistics with a gradient": {"mean": torch.zeros(4, requires_grad=True)},
    "running statistics with gaps": {"mean": torch.zeros(8)[::2]},
    "no eps": {"eps": 0.0},
    "an eps that is no number": {"eps": None},
    "out of another layout": {"out": torch.empty(3, 5, 4).transpose(1, 2)},
    "out over the weight": overlapping(),
    "out with a gradient to record": {"out": torch.empty(3, 4, 5), "w": torch.ones(4, requires_grad=True)},
    "a subclass": {"x": torch.randn(3, 4, 5).as_subclass(type("Own", (torch.Tensor,), {}))},
}


@pytest.mark.parametrize("name", DECLINED)
def test_a_call_of_another_kind_is_declined_and_changes_nothing(name):
    call = {
        "x": torch.randn(3, 4, 5),
        "groups": None,
        "w": torch.ones(4),
        "b": torch.zeros(4),
        "mean": torch.zeros(4),
        "var": torch.ones(4),
        "given": False,
        "momentum": 0.1,
        "eps": 1e-5,
        "out": None,
        **DECLINED[name],
    }
    before = [None if t is None else t.detach().clone() for t in (call["mean"], call["var"])]
    assert eager.MODULE.channels(*call.values()) is None
    for t, old in zip((call["mean"], call["var"]), before, strict=True):
        assert t is None or (torch.equal(t, old) and t._version == 0)


@pytest.mark.parametrize("groups", [0, -1, 3, 2**80, 2.0, "2", False])
def test_groups_that_do_not_divide_the_channels_are_declined(groups):
    x = torch.randn(2, 4, 3)
    assert eager.MODULE.channels(x, groups, None, None, None, None, False, None, 1e-5, None) is None


def test_a_given_statistic_that_is_missing_is_declined():
    x = torch.randn(2, 4, 3)
    assert eager.MODULE.channels(x, None, None, None, None, None, True, 0.1, 1e-5, None) is None


def test_modes_and_transforms_are_declined(taken):
    x = torch.randn(3, 4, 5)
    torch.func.vmap(lambda x: F.group_norm(x, 2))(x[None])
    torch.func.grad(lambda x: F.group_norm(x, 2).sum())(x)
    assert not any(taken)
