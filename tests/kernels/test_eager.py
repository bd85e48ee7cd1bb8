"""The short way into the kernels: which calls take it, and that its graph nodes behave as torch's own do."""

import gc
import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as T
from torch._dynamo import compiled_autograd
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from normkit.kernels import reference
from normkit.kernels.cpu import eager

pytestmark = pytest.mark.skipif(eager.MODULE is None, reason=f"_eager is missing: {eager.MISSING}")
E = eager.MODULE
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
CENTER = 1


def recompute(dy, dtotal, x, weight, bias, stats, needed, dims, eps, kind):
    """The contract of `set_backward`, in plain torch operations."""
    axes = tuple(range(x.ndim - dims, x.ndim))
    with torch.enable_grad():
        if kind & CENTER:
            y = reference.layer_norm(x, axes=axes, weight=weight, bias=bias, eps=eps)
        else:
            y = reference.rms_norm(x, axes=axes, weight=weight, eps=eps)
        inputs = [t for t, need in zip((x, weight, bias), needed, strict=True) if need]
        found = iter(torch.autograd.grad(y, inputs, dy, create_graph=torch.is_grad_enabled()))
    dx, dweight, dbias = (next(found) if need else None for need in needed)
    return dx if dtotal is None or dx is None else dx + dtotal, dweight, dbias


@pytest.fixture(autouse=True)
def backward():
    before = E.set_backward(recompute, None)
    yield
    E.set_backward(*before)


def tensors(*shape, dtype=torch.float32, grad=True, params=None):
    size = shape[-1:]
    x, residual = torch.randn(2, *shape).to(dtype)
    weight, bias = torch.rand(size).to(params or dtype), torch.randn(size).to(params or dtype)
    return [t.clone().requires_grad_(grad) for t in (x, residual, weight, bias)]


CALLS = {
    "layer_norm": (
        lambda x, r, w, b, out=None: E.layer_norm(x, x.shape[-1:], w, b, 1e-5, out),
        lambda x, r, w, b: T.layer_norm(x, x.shape[-1:], w, b, 1e-5),
    ),
    "rms_norm": (
        lambda x, r, w, b, out=None: E.rms_norm(x, x.shape[-1:], w, 1e-5, out),
        lambda x, r, w, b: T.rms_norm(x, x.shape[-1:], w, 1e-5),
    ),
    "add_layer_norm": (
        lambda x, r, w, b, out=None: E.add_layer_norm(x, r, x.shape[-1:], w, b, 1e-5, out),
        lambda x, r, w, b: (T.layer_norm(x + r, x.shape[-1:], w, b, 1e-5), x + r),
    ),
    "add_rms_norm": (
        lambda x, r, w, b, out=None: E.add_rms_norm(x, r, x.shape[-1:], w, 1e-5, out),
        lambda x, r, w, b: (T.rms_norm(x + r, x.shape[-1:], w, 1e-5), x + r),
    ),
}


def flat(result):
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_torchs(name, dtype):
    ours, theirs = CALLS[name]
    wide = torch.float64
    inputs = tensors(5, 37, dtype=dtype)
    exact = [t.detach().to(wide).requires_grad_() for t in inputs]
    got, truth = flat(ours(*inputs)), flat(theirs(*exact))
    grads = [torch.randn(5, 37).to(dtype) for _ in got]
    tolerance = 8 * torch.finfo(dtype).eps
    got += torch.autograd.grad(got, inputs, grads, allow_unused=True)
    truth += torch.autograd.grad(truth, exact, [g.to(wide) for g in grads], allow_unused=True)
    for a, b in zip(got, truth, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == dtype
            scale = b.abs().max().clamp_min(1)
            assert (a.to(wide) - b).abs().max() <= tolerance * scale


@pytest.mark.parametrize("weight", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parameters_may_have_any_of_the_four_dtypes(dtype, weight):
    x, _, w, b = tensors(3, 8, dtype=dtype, params=weight)
    y = E.layer_norm(x, (8,), w, b, 1e-5, None)
    dx, dw, db = torch.autograd.grad(y.sum(), (x, w, b))
    assert (y.dtype, dx.dtype, dw.dtype, db.dtype) == (dtype, dtype, weight, weight)


def test_the_default_epsilon_is_that_of_the_compute_dtype():
    for dtype in DTYPES:
        x = torch.randn(3, 8).to(dtype) * 1e-3
        eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
        assert torch.equal(E.rms_norm(x, (8,), None, None, None), E.rms_norm(x, (8,), None, eps, None))


SHAPES = [(8,), [8], torch.Size([8]), (3, 8), [2, 3, 8]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_are_tuples_lists_and_sizes_of_one_or_several_axes(shape):
    x, w = torch.randn(2, 3, 8), torch.rand(tuple(shape))
    torch.testing.assert_close(
        E.layer_norm(x, shape, w, w, 1e-5, None), T.layer_norm(x, tuple(shape), w, w), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("view", ["as it is", "transposed", "expanded", "last axes turned", "sliced"])
def test_strides_of_every_kind_are_taken(view):
    x = torch.randn(2, 12, 7, 64)
    x = {
        "as it is": x,
        "transposed": x.transpose(1, 2),
        "expanded": x[:1].expand(3, 12, 7, 64),
        "last axes turned": x.transpose(2, 3),
        "sliced": x[:, ::2, 1:, 3:],
    }[view].requires_grad_()
    shape = x.shape[-1:]
    y = E.rms_norm(x, shape, None, 1e-5, None)
    torch.testing.assert_close(y, T.rms_norm(x, shape, None, 1e-5))
    assert y.is_contiguous()
    grad = torch.randn(y.shape)
    ours, theirs = (torch.autograd.grad(f, x, grad)[0] for f in (y, T.rms_norm(x, shape, None, 1e-5)))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


X, W = torch.randn(4, 8), torch.rand(8)


class Subclass(torch.Tensor):
    pass


def dual():
    return forward_ad.make_dual(X, X)


def freed():
    t = torch.ones(2, 4, 8)[1]
    t.untyped_storage().resize_(0)
    return t


with torch.inference_mode():
    INFERENCE = torch.zeros(4, 8)
DECLINED = {
    "a subclass": lambda: E.layer_norm(X.as_subclass(Subclass), (8,), None, None, 1e-5, None),
    "a subclass as weight": lambda: E.layer_norm(X, (8,), W.as_subclass(Subclass), None, 1e-5, None),
    "no tensor": lambda: E.layer_norm([1.0], (8,), None, None, 1e-5, None),
    "meta": lambda: E.layer_norm(X.to("meta"), (8,), None, None, 1e-5, None),
    "a weight on meta": lambda: E.layer_norm(X, (8,), W.to("meta"), None, 1e-5, None),
    "a bias on meta": lambda: E.layer_norm(X, (8,), W, W.to("meta"), 1e-5, None),
    "a residual on meta": lambda: E.add_rms_norm(X, X.to("meta"), (8,), W, 1e-5, None),
    "sparse": lambda: E.layer_norm(X.to_sparse(), (8,), None, None, 1e-5, None),
    "a negative bit": lambda: E.layer_norm(torch.complex(X, X).conj().imag, (8,), None, None, 1e-5, None),
    "integers": lambda: E.layer_norm(X.long(), (8,), None, None, 1e-5, None),
    "an integer weight": lambda: E.layer_norm(X, (8,), W.long(), None, 1e-5, None),
    "complex numbers": lambda: E.rms_norm(X.cfloat(), (8,), None, 1e-5, None),
    "another size": lambda: E.layer_norm(X, (7,), None, None, 1e-5, None),
    "a size of minus one": lambda: E.layer_norm(X, (-1,), None, None, 1e-5, None),
    "a size that overflows": lambda: E.layer_norm(X, (2**70,), None, None, 1e-5, None),
    "no size": lambda: E.layer_norm(X, (), None, None, 1e-5, None),
    "more axes": lambda: E.layer_norm(X, (1, 4, 8), None, None, 1e-5, None),
    "a number as shape": lambda: E.layer_norm(X, 8, None, None, 1e-5, None),
    "floats as shape": lambda: E.layer_norm(X, (8.0,), None, None, 1e-5, None),
    "a weight too short": lambda: E.layer_norm(X, (8,), W[:7], None, 1e-5, None),
    "a weight with another axis": lambda: E.layer_norm(X, (8,), W[None], None, 1e-5, None),
    "a weight turned round": lambda: E.layer_norm(X, (4, 8), torch.ones(8, 4), None, 1e-5, None),
    "an epsilon in words": lambda: E.layer_norm(X, (8,), None, None, "1e-5", None),
    "no epsilon": lambda: E.layer_norm(X, (8,), None, None, None, None),
    "an epsilon beyond floats": lambda: E.layer_norm(X, (8,), None, None, 10**400, None),
    "a residual of another dtype": lambda: E.add_rms_norm(X, X.double(), (8,), W, 1e-5, None),
    "a residual of another shape": lambda: E.add_rms_norm(X, X[:3], (8,), W, 1e-5, None),
    "freed storage": lambda: E.layer_norm(freed(), (8,), None, None, 1e-5, None),
    "a freed weight": lambda: E.layer_norm(X, (4, 8), freed(), None, 1e-5, None),
    "a freed out": lambda: E.layer_norm(X, (8,), None, None, 1e-5, freed()),
    "channels_last": lambda: E.rms_norm(
        torch.randn(2, 3, 4, 8).to(memory_format=torch.channels_last), (8,), None, 1e-5, None
    ),
    "an out of another shape": lambda: E.layer_norm(X, (8,), None, None, 1e-5, torch.zeros(3, 8)),
    "an out of another dtype": lambda: E.layer_norm(X, (8,), None, None, 1e-5, torch.zeros(4, 8).double()),
    "an out with gaps": lambda: E.layer_norm(X, (8,), None, None, 1e-5, torch.zeros(4, 9)[:, :8]),
    "an out that overlaps": lambda: E.layer_norm(X[:3], (8,), None, None, 1e-5, X[1:]),
    "an out that is the weight": lambda: E.layer_norm(torch.randn(1, 8), (8,), W, None, 1e-5, W[None]),
    "an out for inference": lambda: E.layer_norm(X, (8,), None, None, 1e-5, INFERENCE),
    "an out with a gradient": lambda: E.layer_norm(
        X, (8,), None, None, 1e-5, torch.zeros(4, 8, requires_grad=True)
    ),
    "an out where a gradient is to be recorded": lambda: E.layer_norm(
        X, (8,), W.clone().requires_grad_(), None, 1e-5, torch.zeros(4, 8)
    ),
    "one out for two": lambda: E.add_rms_norm(X, X, (8,), None, 1e-5, torch.zeros(4, 8)),
    "two outs in one place": lambda: E.add_rms_norm(X, X, (8,), None, 1e-5, (o := torch.zeros(4, 8), o)),
    "a function mode": lambda: within(torch.overrides.BaseTorchFunctionMode()),
    "a dispatch mode": lambda: within(FlopCounterMode(display=False)),
}


def within(mode):
    with mode:
        return E.layer_norm(X, (8,), None, None, 1e-5, None)


@pytest.mark.parametrize("name", DECLINED)
def test_a_call_of_another_kind_is_declined_and_changes_nothing(name):
    before, version = X.clone(), (X._version, W._version, INFERENCE.sum())
    assert DECLINED[name]() is None
    assert torch.equal(X, before)
    assert (X._version, W._version, INFERENCE.sum()) == version


def test_forward_gradients_transforms_and_tracing_are_declined():
    seen = []

    def norm(x):
        seen.append(E.layer_norm(x, (8,), None, None, 1e-5, None))
        return x

    with forward_ad.dual_level():
        norm(forward_ad.make_dual(X, X))
        seen.append(E.layer_norm(X, (8,), forward_ad.make_dual(W, W), None, 1e-5, None))
        assert E.layer_norm(X, (8,), None, None, 1e-5, None) is not None, "no dual among these"
    torch.func.vmap(norm)(X[None])
    torch.func.grad(lambda x: norm(x).sum())(X)
    torch.func.grad(lambda x: norm(X).sum() + x.sum())(X)
    torch.jit.trace(norm, (X,), check_trace=False)
    assert seen
    assert all(y is None for y in seen)


def test_autocast_changes_nothing():
    with torch.autocast("cpu", torch.bfloat16):
        assert E.layer_norm(X, (8,), W, None, 1e-5, None).dtype == torch.float32


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_out_is_written_counted_and_returned(name):
    x, r, w, b = tensors(6, 37, grad=False)
    ours = CALLS[name][0]
    expected, out = ours(x, r, w, b), torch.full((6, 37), torch.nan)
    version = out._version
    assert ours(x, r, w, b, out=out) is out
    assert torch.equal(out, expected)
    assert out._version == version + 1
    with torch.no_grad():
        assert ours(x.requires_grad_(), r, w, b, out=out) is out
    x = x.detach()
    assert ours(x, r, w, b, out=x) is x, "in place"
    assert torch.equal(x, expected)


@pytest.mark.parametrize("name", ["add_layer_norm", "add_rms_norm"])
@pytest.mark.parametrize(
    "into", [("new", "new"), ("new", "x"), ("new", "r"), ("x", "r"), ("r", "x"), ("x", "new")]
)
@pytest.mark.parametrize("dim", [3, 37, 64])
def test_a_sum_may_be_written_over_its_terms(name, into, dim):
    x, r, w, b = tensors(6, dim, grad=False)
    ours = CALLS[name][0]
    expected = ours(x, r, w, b)
    places = {"x": x, "r": r}
    out = tuple(places.get(place, torch.empty(6, dim)) for place in into)
    versions = [t._version for t in out]
    got = ours(x, r, w, b, out=out)
    assert all(a is b for a, b in zip(got, out, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert [t._version for t in out] == [v + 1 for v in versions]


def test_a_tensor_saved_for_a_backward_and_overwritten_by_out_is_noticed():
    a, y = torch.rand(4, 8, requires_grad=True), torch.zeros(4, 8)
    z = (a * y).sum()
    E.layer_norm(X, (8,), None, None, 1e-5, y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()
    x = torch.randn(4, 8, requires_grad=True)
    double = x * 2
    y = E.layer_norm(double, (8,), None, None, 1e-5, None)
    double.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inference_mode():
    with torch.inference_mode():
        y = E.layer_norm(X, (8,), W.clone().requires_grad_(), None, 1e-5, None)
        assert y.is_inference()
        assert y.grad_fn is None
        assert E.layer_norm(X, (8,), None, None, 1e-5, y) is y
    assert E.layer_norm(y, (8,), None, None, 1e-5, None) is not None


def test_a_parameter_is_a_plain_tensor():
    weight = torch.nn.Parameter(W)
    y = E.layer_norm(torch.nn.Parameter(X), (8,), weight, weight, 1e-5, None)
    assert y.grad_fn.name() == "RowsBackward"
    assert "RowsBackward" in repr(y)
    assert E.add_rms_norm(X, X, (8,), weight, 1e-5, None)[1].grad_fn.name() == "AddRowsBackward"


@pytest.mark.parametrize("name", CALLS)
def test_only_what_is_asked_for_is_computed(name):
    ours, theirs = CALLS[name]
    inputs = tensors(5, 8)
    for wanted in range(4):
        found = [
            torch.autograd.grad(sum(flat(f(*inputs))).sin().sum(), inputs[wanted], allow_unused=True)[0]
            for f in (ours, theirs)
        ]
        if found[1] is None:
            assert found[0] is None
        else:
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    for frozen in range(4):
        some = [t.detach().requires_grad_(k != frozen) for k, t in enumerate(inputs)]
        sum(flat(ours(*some))).sin().sum().backward()
        assert some[frozen].grad is None


@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("name", ["add_layer_norm", "add_rms_norm"])
def test_one_of_two_outputs_may_go_unused(name, used):
    ours, theirs = CALLS[name]
    inputs = tensors(5, 8)
    a, b = (
        torch.autograd.grad(f(*inputs)[used].sin().sum(), inputs, allow_unused=True) for f in (ours, theirs)
    )
    for mine, truth in zip(a, b, strict=True):
        assert mine is None or torch.allclose(
            mine, torch.zeros_like(mine) if truth is None else truth, atol=1e-5
        )


@pytest.mark.parametrize("name", CALLS)
def test_second_derivatives(name):
    inputs = [t.detach().double().requires_grad_() for t in tensors(3, 5)]
    ours = CALLS[name][0]
    used = inputs if "layer" in name else inputs[:3]
    used = used if "add" in name else [t for t in used if t is not inputs[1]]

    def f(*given):
        full = [given[[t is u for u in used].index(True)] if any(t is u for u in used) else t for t in inputs]
        return ours(*full)

    assert torch.autograd.gradcheck(f, used)
    assert torch.autograd.gradgradcheck(f, used)


def test_a_graph_is_used_once_unless_it_is_kept():
    x, _, w, b = tensors(4, 8)
    y = E.layer_norm(x, (8,), w, b, 1e-5, None)
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(y.sum(), x)


def test_hooks_see_gradients_and_may_change_them():
    x, _, w, b = tensors(4, 8)
    y = E.layer_norm(x, (8,), w, b, 1e-5, None)
    seen = []
    y.register_hook(lambda g: seen.append(g) or 2 * g)
    y.grad_fn.register_prehook(lambda grads: seen.append(grads[0]))
    y.grad_fn.register_hook(lambda dx, dy: seen.append(dx))
    y.retain_grad()
    y.sum().backward()
    assert torch.equal(seen[0], torch.ones(4, 8))
    assert torch.equal(y.grad, 2 * torch.ones(4, 8))
    assert len(seen) == 3
    torch.testing.assert_close(b.grad, torch.full((8,), 8.0))


def test_saved_tensors_hooks_see_what_is_saved():
    x, r, w, b = tensors(4, 8)
    packed, unpacked = [], []

    def pack(t):
        packed.append(t)
        return t.clone()

    def unpack(t):
        unpacked.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y, _ = E.add_layer_norm(x, r, (8,), w, b, 1e-5, None)
    assert any(torch.equal(t, x + r) for t in packed)
    plain = torch.autograd.grad(E.add_layer_norm(x, r, (8,), w, b, 1e-5, None)[0].sum(), (x, w))
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(y.sum(), (x, w)), plain, strict=True))
    assert len(unpacked) == len(packed)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing(use_reentrant):
    x, r, w, b = tensors(4, 8)

    def block(x):
        return E.layer_norm(E.add_rms_norm(x, r, (8,), w, 1e-5, None)[0], (8,), w, b, 1e-5, None).sin()

    once = torch.autograd.grad(block(x).sum(), x)[0]
    checkpoint(block, x, use_reentrant=use_reentrant).sum().backward()
    assert torch.equal(once, x.grad)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_mode_names_the_node():
    x, _, w, b = tensors(4, 8)
    with torch.autograd.detect_anomaly():
        loss = E.layer_norm(x, (8,), w * torch.nan, b, 1e-5, None).sum()
        with (
            pytest.warns(UserWarning, match="Error detected in RowsBackward"),
            pytest.raises(RuntimeError, match="RowsBackward"),
        ):
            torch.autograd.grad(loss, x)


def test_an_error_in_python_arrives():
    def broken(*call):
        raise ZeroDivisionError("on purpose")

    E.set_backward(broken, None)
    x = torch.randn(4, 8, requires_grad=True)
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        torch.autograd.grad(E.layer_norm(x, (8,), None, None, 1e-5, None).sum(), x, create_graph=True)


def test_batched_gradients():
    x = torch.randn(4, 8, requires_grad=True)
    y, truth = E.layer_norm(x, (8,), None, None, 1e-5, None), T.layer_norm(x, (8,))
    many = torch.randn(3, 4, 8)
    ours, theirs = (torch.autograd.grad(f, x, many, is_grads_batched=True)[0] for f in (y, truth))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_graphs_of_several_threads():
    x, _, w, b = tensors(64, 768)
    y = E.layer_norm(x, (768,), w, b, 1e-5, None)
    expected = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    results = []

    def work():
        results.append(torch.autograd.grad(y.sum(), x, retain_graph=True)[0])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(torch.equal(r, expected) for r in results)


def test_nothing_is_leaked():
    def live():
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    x, r, w, b = tensors(4, 8)
    out = torch.zeros(4, 8)

    def use():
        y, total = E.add_layer_norm(x, r, (8,), w, b, 1e-5, None)
        (y + total).sum().backward()
        E.layer_norm(x, (7,), w, b, 1e-5, out)
        E.layer_norm(x.detach(), (8,), None, None, 1e-5, out[:2])
        x.grad = r.grad = w.grad = b.grad = None

    use()
    before = live(), sys.getrefcount(out), sys.getrefcount(x), sys.getrefcount(w)
    for _ in range(20):
        use()
    assert (live(), sys.getrefcount(out), sys.getrefcount(x), sys.getrefcount(w)) == before


def test_the_profiler_shows_the_operators():
    x, r, w, b = tensors(4, 8)
    with torch.profiler.profile() as profile:
        E.layer_norm(x.detach(), (8,), None, None, 1e-5, None)
        E.layer_norm(x, (8,), w, b, 1e-5, None).sum().backward()
        E.add_rms_norm(x, r, (8,), w, 1e-5, None)
        E.rms_norm(x.detach(), (8,), None, 1e-5, torch.empty(4, 8))
    names = {event.key for event in profile.key_averages()}
    assert {"normkit::rows", "normkit::rows_train", "normkit::rows_add_train", "normkit::rows_out"} <= names
    assert {"normkit::rows_backward", "RowsBackward"} <= names


def test_admitted_calls_raise_where_the_kernels_refuse():
    with pytest.raises(RuntimeError, match="another shape than the normalised axes"):
        E.rows(X, W[:7], None, 1, 1e-5, CENTER)
    with pytest.raises(RuntimeError, match="more normalised axes"):
        E.rows(X, None, None, 3, 1e-5, CENTER)
    with pytest.raises(TypeError):
        E.rows([1.0], None, None, 1, 1e-5, CENTER)
    with pytest.raises(TypeError, match="takes 6 arguments"):
        E.layer_norm(X, (8,))


def test_a_sum_of_two_dtypes_gives_each_term_a_gradient_of_its_own():
    x, r, w, _ = tensors(4, 8)
    x = x.detach().bfloat16().requires_grad_()
    y, total = E.rows_add(x, r, w, None, 1, 1e-5, 0)
    assert (y.dtype, total.dtype) == (torch.bfloat16, torch.float32)
    dx, dr = torch.autograd.grad((y.float() * total).sum(), (x, r))
    assert (dx.dtype, dr.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(dx.float(), dr, rtol=2**-7, atol=1e-6)


IMAGE = (2, 1, 3, 2, 20)  # (k0, r1, k2, r3, i) of a group norm


def groups(x, weight, bias, planned=None):
    return E.groups(x, *IMAGE, weight, bias, False, None, None, None, 1e-5, True, planned)


@pytest.mark.parametrize("layout", ["as it came", "turned"])
def test_groups_have_a_node_too(layout):
    x, w, b = (torch.randn(shape, requires_grad=True) for shape in ((2, 6, 4, 5), (6,), (6,)))
    y, stats = groups(x, w, b)
    truth = T.group_norm(x, 3, w, b)
    assert y.grad_fn.name() == "GroupsBackward"
    assert not stats.requires_grad
    torch.testing.assert_close(y, truth)
    dy = torch.randn(2, 6, 4, 5)
    dy = dy if layout == "as it came" else dy.transpose(2, 3).contiguous().transpose(2, 3)
    ours, theirs = (torch.autograd.grad(f, (x, w, b), dy, retain_graph=True) for f in (y, truth))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    (alone,) = torch.autograd.grad(y, w, dy)
    assert torch.equal(alone, ours[1])
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(y, w, dy)


def test_second_derivatives_of_groups_are_pythons_with_the_plan():
    plan, seen = object(), []

    def recompute_groups(dy, x, weight, bias, mask, mean, var, stats, needed, planned, eps, center):
        seen.append((planned, needed, mask, mean, var, center))
        y = T.group_norm(x, 3, weight, bias, eps)
        return torch.autograd.grad(y, (x, weight, bias), dy, create_graph=True)

    E.set_backward(recompute, recompute_groups)
    inputs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 6, 4, 5), (6,), (6,))]
    assert torch.autograd.gradgradcheck(lambda x, w, b: groups(x, w, b, plan)[0], inputs)
    assert seen[0] == (plan, (True, True, True), None, None, None, True)
    before = sys.getrefcount(plan)
    y = groups(*inputs, plan)[0]
    assert sys.getrefcount(plan) == before + 1
    del y
    assert sys.getrefcount(plan) == before


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch reads it
def test_compiled_autograd_traces_the_nodes():
    x, r, w, b = tensors(4, 6)
    image = torch.randn(2, 6, 4, 5, requires_grad=True)
    inputs = (x, r, w, b, image)

    def grads():
        y, total = E.add_layer_norm(E.rms_norm(x, (6,), w, 1e-5, None), r, (6,), w, b, 1e-5, None)
        return torch.autograd.grad((y * total).sum() + groups(image, w, b)[0].sin().sum(), inputs)

    expected = grads()
    torch._dynamo.reset()
    with compiled_autograd._enable(torch.compile(backend="eager")):
        for _ in range(2):
            for a, truth in zip(grads(), expected, strict=True):
                torch.testing.assert_close(a, truth)
    torch._dynamo.reset()


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def test_an_environment_variable_switches_it_off():
    program = "from normkit.kernels.cpu import eager; print(eager.MODULE, eager.MISSING)"
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**ENVIRONMENT, "NORMKIT_EAGER": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "None NORMKIT_EAGER=0 switches it off"


def test_under_another_torch_it_does_not_load_and_says_why():
    program = """
import torch
torch.__version__ = "2.99.0"
from normkit.kernels.cpu import eager
print(eager.MISSING)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert f"it was built for torch {torch.__version__}, and this is torch 2.99.0" in result.stdout
