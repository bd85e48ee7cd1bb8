"""The Triton kernels, interpreted on the CPU: what the tests of all kernels do not ask. Run with --triton."""

import pytest
import torch
import torch.nn.functional as T
from truth import assert_close

import normkit as nk
from normkit import functional as F
from normkit.kernels.cpu import eager
from normkit.kernels.triton.versions import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="these run with --triton alone")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def launched(monkeypatch):
    """The kernels that were launched, by name."""
    from normkit.kernels.triton import groups, quick, rows

    names = []
    own = quick.launch

    def counted(call, tensors, device):
        names.append(call.kernel.fn.__name__)
        own(call, tensors, device)

    with monkeypatch.context() as patch:
        for module in (rows, groups, quick):
            patch.setattr(module, "launch", counted)
        _serve()
        yield names
    _serve()


def _serve():
    from normkit.kernels.triton import quick

    if eager.MODULE is not None:
        quick.serve("cpu")


def gradients(function, *inputs):
    """The output and the gradients of a weighted sum of it, and the same in float64."""
    found = []
    for dtype in (None, torch.float64):
        own = [t.detach().to(dtype or t.dtype).requires_grad_() for t in inputs]
        y = function(*own)
        weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(inputs[0].dtype).to(y.dtype)
        found.append([y, *torch.autograd.grad(y, own, weights)])
    return zip(*found, strict=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [1, 2, 1000, 8192, 8193, 33000])
def test_rows_in_registers_and_rows_that_are_looped_over(dim, dtype, launched):
    torch.manual_seed(dim)
    x, weight, bias = torch.randn(3, dim).to(dtype), torch.rand(dim).to(dtype), torch.randn(dim).to(dtype)
    eps = 1e-5 if dim > 2 else 0.1
    for got, true in gradients(lambda x, w, b: F.layer_norm(x, (dim,), w, b, eps), x, weight, bias):
        assert_close(got, true)
    longest, longest_backward = (16384, 4096) if dtype == torch.float32 else (32768, 8192)
    assert launched[0] == ("rows_forward_long" if dim > longest else "rows_forward")
    assert ("rows_backward_long" in launched) == (dim > longest_backward)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"])
@pytest.mark.parametrize(("rows", "sums"), [(6, []), (300, ["sum_partials"])])
def test_one_launch_forward_and_as_few_as_it_takes_backward(op, rows, sums, launched):
    x, weight = torch.randn(rows, 64, requires_grad=True), torch.ones(64, requires_grad=True)
    call = (x, x.detach()) if "add" in op else (x,)
    y = getattr(F, op)(*call, (64,), weight)
    y = sum(y) if isinstance(y, tuple) else y
    assert launched == ["rows_forward"]
    y.sum().backward()
    assert launched == ["rows_forward", "rows_backward", *sums]


@pytest.mark.parametrize(
    ("norm", "forward", "backward"),
    [
        (nk.GroupNorm(2, 6), 3, 5),
        (nk.InstanceNorm2d(6, affine=True), 3, 5),
        (nk.BatchNorm2d(6), 4, 5),  # and one for the running statistics
        (nk.BatchNorm2d(6).eval(), 2, 4),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_launches_of_groups(norm, forward, backward, layout, launched):
    x = torch.randn(2, 6, 4, 4).to(memory_format=layout).requires_grad_()
    y = norm(x)
    assert len(launched) == forward, launched
    y.sum().backward()
    assert len(launched) - forward == backward, launched


VIEWS = {
    "a gap between rows": lambda: torch.randn(8, 100)[:, :96],
    "every second row": lambda: torch.randn(16, 96)[::2],
    "heads out of a projection": lambda: torch.randn(2, 5, 3, 4, 96)[:, :, 0].transpose(1, 2),
    "an address that divides by nothing": lambda: torch.randn(8 * 96 + 1)[1:].view(8, 96),
    "one row again and again": lambda: torch.randn(1, 96).expand(8, 96),
}


@pytest.mark.parametrize("view", VIEWS)
def test_strided_rows_are_read_where_they_are(view, monkeypatch):
    torch.manual_seed(0)
    x = VIEWS[view]()
    copies = []
    own = torch.Tensor.contiguous
    monkeypatch.setattr(
        torch.Tensor,
        "contiguous",
        lambda t, **k: (
            copies.append(t) if t.shape == x.shape and not t.is_contiguous() else None,
            own(t, **k),
        )[1],
    )
    y = F.rms_norm(x, (96,))
    monkeypatch.undo()
    assert not copies
    torch.testing.assert_close(y, T.rms_norm(x, (96,)))


def test_rows_of_four_leading_axes_that_do_not_merge_are_copied_and_right():
    x = torch.randn(4, 3, 5, 2, 16).permute(3, 1, 0, 2, 4)
    torch.testing.assert_close(F.layer_norm(x, (16,)), T.layer_norm(x, (16,)))


@pytest.mark.parametrize("rows", [1, 2, 33, 70])
def test_a_rows_bits_do_not_depend_on_the_rows_around_it(rows):
    torch.manual_seed(0)
    x, dy, weight = torch.randn(70, 100) + 100, torch.randn(70, 100), torch.rand(100)

    def run(x, dy):
        x = x.clone().requires_grad_()
        y = F.layer_norm(x, (100,), weight)
        return y.detach(), *torch.autograd.grad(y, x, dy)

    for few, all_of_them in zip(run(x[:rows], dy[:rows]), run(x, dy), strict=True):
        assert torch.equal(few, all_of_them[:rows])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_samples_bits_do_not_depend_on_its_batch_or_on_nan_in_it(layout):
    x = (torch.randn(5, 8, 6, 6) + 10).contiguous(memory_format=layout)
    x[3, 2, 1, 1] = float("nan")
    x[4] *= 1e30
    for norm in (lambda x: F.group_norm(x, 2), F.instance_norm):
        assert torch.equal(norm(x)[:2], norm(x[:2]))


def test_nothing_is_nothing():
    x = torch.randn(0, 8, requires_grad=True)
    weight = torch.ones(8, requires_grad=True)
    F.layer_norm(x, (8,), weight).sum().backward()
    assert x.grad.shape == (0, 8)
    assert torch.equal(weight.grad, torch.zeros(8))


def test_the_check_of_a_new_device_passes_and_can_fail(monkeypatch):
    from normkit.kernels.triton import rows, selfcheck

    assert selfcheck.run(torch.device("cpu")) == ""
    own = rows.rows_train
    monkeypatch.setattr(rows, "rows_train", lambda *call: [1.001 * own(*call)[0], own(*call)[1]])
    assert "off by" in selfcheck.run(torch.device("cpu"))


def test_a_compiled_graph_holds_our_operator_and_runs():
    weight = torch.rand(64)
    compiled = torch.compile(lambda x: F.layer_norm(x, (64,), weight), backend="aot_eager", fullgraph=True)
    x = torch.randn(4, 64)
    torch.testing.assert_close(compiled(x), T.layer_norm(x, (64,), weight))


def test_second_derivatives_go_through_the_reference():
    x = torch.randn(3, 8, requires_grad=True)
    y = F.layer_norm(x, (8,))
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (found,) = torch.autograd.grad(dx.square().sum(), x)
    wide = x.detach().double().requires_grad_()
    (dx,) = torch.autograd.grad(T.layer_norm(wide, (8,)).square().sum(), wide, create_graph=True)
    (true,) = torch.autograd.grad(dx.square().sum(), wide)
    torch.testing.assert_close(found.double(), true, rtol=1e-5, atol=1e-5)


def test_what_is_written_to_has_a_new_version():
    x = torch.randn(4, 6)
    out, total, mean, var = torch.empty(4, 6), torch.empty(4, 6), torch.zeros(6), torch.ones(6)
    F.layer_norm(x, (6,), out=out)
    F.add_rms_norm(x, x, (6,), out=(out, total))
    F.group_norm(x.t().contiguous().t(), 2, out=out.t().contiguous().t())
    assert (out._version, total._version) == (2, 1)
    F.batch_norm(x, mean, var, training=True)
    assert (mean._version, var._version) == (1, 1)
    F.batch_norm(x, mean, var, training=True, out=out)
    assert (mean._version, var._version, out._version) == (2, 2, 3)


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-28])
@pytest.mark.parametrize("spread", [1.0, 1e-12, 1e-30, 1e16])
def test_chunks_that_are_constant_by_themselves_and_differ_from_each_other(spread, eps):
    """Of a group of channels with one place each, every chunk is constant."""
    x = (torch.randn(3, 6, generator=torch.Generator().manual_seed(0)) * spread).requires_grad_()
    wide = x.detach().double().requires_grad_()
    y, true = F.group_norm(x, 2, eps=eps), T.group_norm(wide, 2, eps=eps)
    assert_close(y, true)
    weights = torch.linspace(-1, 1, 18).view(3, 6)
    (dx,) = torch.autograd.grad(y, x, weights)
    (true_dx,) = torch.autograd.grad(true, wide, weights.double())
    assert_close(dx, true_dx)


@pytest.mark.parametrize("value", [0.1, 1e6 + 0.1, -3e38])
def test_a_constant_channel_of_any_number_of_places_has_no_variance(value):
    x = torch.full((701, 3), value)
    assert F.batch_norm(x, None, None, training=True, eps=1e-20).eq(0).all()


def test_the_check_of_a_device_does_not_depend_on_who_asks():
    from normkit.kernels.triton import selfcheck

    with torch.inference_mode(), torch.device("meta"):
        assert selfcheck.run(torch.device("cpu")) == ""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert selfcheck.run(torch.device("cpu")) == ""
    finally:
        torch.set_default_dtype(before)


def test_a_variance_near_the_largest_float_moves_to_what_it_is():
    x, mean, var = torch.randn(8, 2, 1024) * 3e17, torch.zeros(2), torch.ones(2)
    F.batch_norm(x, mean, var, training=True, momentum=1.0)
    assert_close(var, x.double().var((0, 2)))


def test_running_statistics_that_are_inference_tensors_move():
    with torch.inference_mode():
        mean, var = torch.zeros(6), torch.ones(6)
    F.batch_norm(torch.randn(4, 6) + 3, mean, var, training=True)
    assert mean.min() > 0
