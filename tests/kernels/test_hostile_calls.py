"""Calls that nobody meant: each once gave a wrong number, a crash, or an error from deep below."""

import gc
import itertools

import pytest
import torch

import normkit as nk
import normkit.functional as N
from normkit import NormkitError
from normkit.kernels import reference

X = torch.randn(4, 6)
IMAGE = torch.randn(2, 6, 3, 4)
CALLS = {  # with a parameter of six numbers
    "layer_norm": lambda w: N.layer_norm(X, (6,), w),
    "layer_norm, bias": lambda w: N.layer_norm(X, (6,), None, w),
    "layer_norm of channels": lambda w: N.layer_norm(IMAGE, (6,), w, axis=1),
    "rms_norm": lambda w: N.rms_norm(X, (6,), w),
    "rms_norm, gemma": lambda w: N.rms_norm(X, (6,), w, zero_centered_weight=True),
    "add_layer_norm": lambda w: N.add_layer_norm(X, X, (6,), w),
    "add_rms_norm": lambda w: N.add_rms_norm(X, X, (6,), w),
    "group_norm": lambda w: N.group_norm(IMAGE, 3, w),
    "instance_norm": lambda w: N.instance_norm(IMAGE, None, None, w),
    "batch_norm": lambda w: N.batch_norm(IMAGE, None, None, w, training=True),
    "batch_norm, running": lambda w: N.batch_norm(IMAGE, w, torch.ones(6)),
    "normalize": lambda w: N.normalize(X, "b [d]", w),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_parameter_without_numbers_is_refused(name):
    with pytest.raises(NormkitError, match="meta") as error:
        CALLS[name](torch.ones(6, device="meta"))
    assert "expected: both on one device" in str(error.value)


def test_a_layer_left_on_meta_is_refused():
    for layer, x in (
        (nk.LayerNorm(6, device="meta"), X),
        (nk.RMSNorm(6, device="meta"), X),
        (nk.GroupNorm(3, 6, device="meta"), IMAGE),
        (nk.BatchNorm2d(6, device="meta"), IMAGE),
        (nk.BatchNorm2d(6, device="meta").eval(), IMAGE),
        (nk.InstanceNorm2d(6, affine=True, device="meta"), IMAGE),
        (nk.Norm("b [d]", d=6, device="meta"), X),
    ):
        with pytest.raises(NormkitError, match="to_empty"):
            layer(x)


def test_a_mask_or_a_residual_on_another_device_is_refused():
    with pytest.raises(NormkitError, match="mask on meta"):
        N.batch_norm(X, None, None, training=True, mask=torch.ones(4, dtype=torch.bool, device="meta"))
    with pytest.raises(NormkitError, match="residual on meta"):
        N.add_rms_norm(X, X.to("meta"), (6,))


def test_an_operator_with_one_argument_on_meta_raises():
    with pytest.raises(RuntimeError, match="one device"):
        torch.ops.normkit.rows(X, torch.ones(6, device="meta"), None, 1, 1e-5, 1)


@pytest.mark.parametrize("name", [n for n in CALLS if "running" not in n])
def test_whole_and_complex_numbers_are_no_parameters(name):
    for dtype in (torch.int64, torch.complex64):
        with pytest.raises(NormkitError, match="floating-point"):
            CALLS[name](torch.ones(6, dtype=dtype))


@pytest.mark.parametrize("name", CALLS)
def test_freed_storage_is_not_read(name):
    w = torch.ones(6)
    w.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError):
        CALLS[name](w)


def test_freed_storage_of_the_input_is_not_read():
    for call in (
        lambda x: N.layer_norm(x, (6,)),
        lambda x: N.group_norm(x, 3),
        lambda x: N.batch_norm(x, None, None, training=True),
    ):
        x = torch.randn(4, 6)
        x.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError):
            call(x)


# ---- out= and autograd -------------------------------------------------------------------------------------

WRITE = {
    "layer_norm": lambda out: N.layer_norm(X, (6,), out=out),
    "rms_norm": lambda out: N.rms_norm(X, (6,), out=out),
    "llama": lambda out: N.rms_norm(X, (6,), torch.ones(6), multiply="after_cast", out=out),
    "add_layer_norm": lambda out: N.add_layer_norm(X, X, (6,), out=(out, torch.empty(4, 6))),
    "add_rms_norm": lambda out: N.add_rms_norm(X, X, (6,), out=(torch.empty(4, 6), out)),
    "group_norm": lambda out: N.group_norm(X, 3, out=out),
    "batch_norm": lambda out: N.batch_norm(X, None, None, training=True, out=out),
    "normalize": lambda out: N.normalize(X, "[b] d", out=out),
}


@pytest.mark.parametrize("name", WRITE)
def test_a_gradient_that_needs_what_out_has_overwritten_is_refused(name):
    a, y = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
    z = (a * y).sum()
    with torch.no_grad():
        WRITE[name](y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_running_statistics_that_a_graph_holds_are_not_moved_in_silence():
    mean, var = torch.zeros(6), torch.ones(6)
    x = X.clone().requires_grad_()
    z = (N.batch_norm(x, mean, var) * 2).sum() + (x * mean).sum()
    with torch.no_grad():
        N.batch_norm(X, mean, var, training=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


@pytest.mark.parametrize("name", ["group_norm", "instance_norm", "batch_norm", "rms_norm", "layer_norm"])
def test_out_may_lie_as_a_permuted_input_does(name):
    x = torch.randn(2, 5, 6, 3).permute(0, 2, 1, 3)
    call = {
        "group_norm": lambda x, **o: N.group_norm(x, 3, **o),
        "instance_norm": lambda x, **o: N.instance_norm(x, **o),
        "batch_norm": lambda x, **o: N.batch_norm(x, None, None, training=True, **o),
        "rms_norm": lambda x, **o: N.rms_norm(x, (6,), axis=1, **o),
        "layer_norm": lambda x, **o: N.layer_norm(x, (6, 5), axis=2, **o),
    }[name]
    out = torch.empty_like(x)
    assert call(x, out=out) is out
    torch.testing.assert_close(out, call(x))


def test_out_may_have_any_stride_along_an_axis_of_one_number():
    x = torch.randn(1, 6, 1, 4)
    out = torch.empty(24).as_strided((1, 6, 1, 4), (7, 4, 99, 1))
    for call in (
        lambda **o: N.normalize(x, "n c h [w]", **o),
        lambda **o: N.group_norm(x, 3, **o),
        lambda **o: N.normalize(x, "n [c] h [w]", torch.ones(6), affine="c", **o),
    ):
        assert call(out=out) is out
        torch.testing.assert_close(out, call(), check_stride=False)


def test_out_with_a_negative_bit_gets_the_numbers():
    out = torch.zeros(4, 6, dtype=torch.complex64).conj().imag
    assert out.is_neg()
    N.layer_norm(X, (6,), out=out)
    torch.testing.assert_close(out.resolve_neg(), N.layer_norm(X, (6,)))


def test_out_into_an_inference_tensor_is_refused_outside_of_inference_mode():
    with torch.inference_mode():
        out = torch.empty(4, 6)
        N.layer_norm(X, (6,), out=out)
    with torch.no_grad(), pytest.raises(NormkitError, match="inference tensor"):
        N.layer_norm(X, (6,), out=out)


def test_a_refused_out_does_not_leak():
    gc.collect()
    for make in (lambda: torch.empty(300, 1000)[:, ::2], lambda: torch.empty(300, 500).T.contiguous().T):
        before = _resident()
        for _ in range(60):
            out = make()
            with pytest.raises((RuntimeError, NormkitError)):
                torch.ops.normkit.rows_out(torch.ones(301, 500), None, None, 1, 1e-5, 1, out)
            with pytest.raises((RuntimeError, NormkitError)):
                torch.ops.normkit.groups_out(
                    torch.ones(301, 500), 1, 301, 500, 1, 1, *[None] * 2, False, *[None] * 3, 1e-5, True, out
                )
        assert _resident() - before < 20e6


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


# ---- patterns ----------------------------------------------------------------------------------------------


def test_parameters_along_axes_of_one_number():
    x = torch.randn(4, 1, 5, 5)
    norm = nk.Norm("[n] c h w", c=1)
    with torch.no_grad():
        norm.weight.fill_(3.0)
        norm.bias.fill_(-1.0)
    expected = reference.normalize(x, axes=(0,), weight=torch.tensor([3.0]), bias=torch.tensor([-1.0]))
    torch.testing.assert_close(norm(x), expected)
    norm(x).square().sum().backward()
    leaves = [t.detach().clone().requires_grad_() for t in (norm.weight, norm.bias)]
    reference.normalize(x, axes=(0,), weight=leaves[0], bias=leaves[1]).square().sum().backward()
    for got, true in zip((norm.weight.grad, norm.bias.grad), (t.grad for t in leaves), strict=True):
        torch.testing.assert_close(got, true)


def test_every_memory_order_of_every_pattern():
    """All orders of four axes, all sets of shared axes, all sets of axes with parameters."""
    sizes = (2, 3, 7, 5)
    names = "abcd"
    subsets = [s for k in range(1, 5) for s in itertools.combinations(range(4), k)]
    for order in itertools.permutations(range(4)):
        base = torch.randn([sizes[a] for a in order], generator=torch.Generator().manual_seed(0))
        x = base.permute([order.index(a) for a in range(4)])
        for shared, along in itertools.product(subsets, subsets):
            pattern = " ".join(f"[{n}]" if k in shared else n for k, n in enumerate(names))
            shape = [sizes[a] for a in along]
            w = torch.rand(shape) + 0.5
            got = N.normalize(x, pattern, w, affine=" ".join(names[a] for a in along), eps=0.1)
            weight = w.reshape([sizes[a] if a in along else 1 for a in range(4)])
            true = reference.normalize(x, axes=shared, weight=weight, eps=0.1)
            assert (got - true).abs().max() < 1e-5, f"{pattern}, affine {along}, order {order}"


def test_a_mask_of_no_channels_gives_nothing():
    mask = torch.ones(7, dtype=torch.bool)
    x = torch.randn(7, 0)
    assert N.batch_norm(x, None, None, training=True, mask=mask).shape == (7, 0)
    assert N.instance_norm(torch.randn(7, 0, 3), mask=torch.ones(7, 3, dtype=torch.bool)).shape == (7, 0, 3)
    assert N.group_norm(torch.randn(7, 0, 3), 1, mask=torch.ones(7, 3, dtype=torch.bool)).shape == (7, 0, 3)


def test_a_negative_size_is_no_shape():
    for call in (N.layer_norm, N.rms_norm):
        with pytest.raises(NormkitError, match="-1"):
            call(X, (-1,))


def test_one_plus_weight_is_added_in_the_wide_dtype():
    x, w = torch.randn(2, 3, 4).double(), torch.randn(3)
    got = N.rms_norm(x, (3,), w, axis=1, zero_centered_weight=True)
    true = N.rms_norm(x, (3,), w.double(), axis=1, zero_centered_weight=True)
    assert (got - true).abs().max() < 1e-14


# ---- the reference -----------------------------------------------------------------------------------------


def test_the_gradient_of_a_huge_constant_group_is_nothing():
    for center in (True, False):
        x = torch.full((4, 5), 1e21, requires_grad=True)
        reference.normalize(x, axes=(0,), center=center).sum().backward()
        assert x.grad.abs().max() < 1e-6


def test_a_group_of_nan_spoils_no_gradient_through_its_padding():
    x = torch.randn(2, 3, 4)
    x[0, 0, 0] = float("nan")
    mask = torch.ones(2, 3, 4, dtype=torch.bool)
    mask[0, 1, 0] = False
    x, w = x.requires_grad_(), torch.ones(3, 4, requires_grad=True)
    N.normalize(x, "a [b] c", w, affine="b c", mask=mask).sum().backward()
    assert w.grad[1, 0].isfinite()
    assert w.grad[0, 0].isnan()
    assert x.grad[0, 1, 0] == 0


def test_small_numbers_without_eps_are_enlarged():
    x = torch.randn(2, 3, 8) * 1e-25
    for center in (True, False):
        y = reference.normalize(x, axes=(2,), eps=0.0, center=center)
        true = reference.normalize(x.double(), axes=(2,), eps=0.0, center=center)
        assert (y - true).abs().max() < 1e-5


def test_float64_near_its_end_has_a_mean():
    x = torch.full((3, 8), 1e308, dtype=torch.float64)
    assert (reference.normalize(x, axes=(1,)) == 0).all()
    x[:, :4] *= -1
    true = torch.tensor([-1.0] * 4 + [1.0] * 4, dtype=torch.float64).expand(3, 8)
    torch.testing.assert_close(reference.normalize(x, axes=(1,)), true)


def test_a_sum_over_other_axes_is_contiguous():
    y, total = N.add_layer_norm(torch.randn(3, 9).t(), torch.randn(9, 3), (9,), axis=0)
    assert y.is_contiguous()
    assert total.is_contiguous()


def test_evaluation_has_a_finite_gradient_at_nan():
    for mask in (None, torch.tensor([True, False, True, True])):
        x = X.clone()
        x[0, 0], x[2, 1] = float("nan"), float("inf")
        x.requires_grad_()
        y = N.batch_norm(x, torch.zeros(6), torch.ones(6) * 3, mask=mask)
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        true = torch.full((4, 6), (3 + 1e-5) ** -0.5)
        if mask is not None:
            true[~mask] = 0
        torch.testing.assert_close(dx, true)
