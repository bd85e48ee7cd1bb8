"""``out=``: the same numbers, in memory that is there; and what cannot be is refused."""

import pytest
import torch

from normkit import NormkitError
from normkit import functional as F

W, B = torch.rand(6), torch.randn(6)
CALLS = {
    "layer_norm": ((5, 6), lambda x, **o: F.layer_norm(x, (6,), W, B, **o)),
    "rms_norm": ((5, 6), lambda x, **o: F.rms_norm(x, (6,), W, **o)),
    "layer_norm of channels": ((2, 6, 3, 4), lambda x, **o: F.layer_norm(x, (6,), W, B, axis=1, **o)),
    "group_norm": ((2, 6, 3, 4), lambda x, **o: F.group_norm(x, 3, W, B, **o)),
    "batch_norm": ((2, 6, 3, 4), lambda x, **o: F.batch_norm(x, None, None, W, B, training=True, **o)),
    "instance_norm": ((2, 6, 3, 4), lambda x, **o: F.instance_norm(x, None, None, W, B, **o)),
    "normalize": ((2, 6, 3, 4), lambda x, **o: F.normalize(x, "n (g [c]) [h w]", g=2, **o)),
}
LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x,
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
}


@pytest.mark.parametrize("out_layout", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_out_holds_the_result_in_any_layout(name, dtype, layout, out_layout):
    shape, norm = CALLS[name]
    x = LAYOUTS[layout](torch.randn(shape).to(dtype))
    out = LAYOUTS[out_layout](torch.full(shape, float("nan"), dtype=dtype))
    expected, strides = norm(x), out.stride()
    assert norm(x, out=out) is out
    torch.testing.assert_close(out, expected, rtol=0, atol=0, check_stride=False)
    assert out.stride() == strides


@pytest.mark.parametrize("name", CALLS)
def test_the_input_itself_may_be_out(name):
    shape, norm = CALLS[name]
    x = torch.randn(shape)
    expected = norm(x.clone())
    assert norm(x, out=x) is x
    torch.testing.assert_close(x, expected, rtol=0, atol=0)


@pytest.mark.parametrize("op", ["add_layer_norm", "add_rms_norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_sum_has_two_outputs(op, dtype):
    x, residual = torch.randn(5, 6).to(dtype), torch.randn(5, 6)
    expected = getattr(F, op)(x, residual, (6,), W)
    out = torch.empty(5, 6, dtype=dtype), torch.empty(5, 6)
    got = getattr(F, op)(x, residual, (6,), W, out=out)
    assert got[0] is out[0]
    assert got[1] is out[1]
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    kept = residual.clone()
    y, stream = getattr(F, op)(x, kept, (6,), W, out=(out[0], kept))
    assert stream is kept
    assert torch.equal(y, expected[0])
    assert torch.equal(stream, expected[1])


X = torch.randn(5, 6)
REFUSED = {
    "another shape": (lambda: F.layer_norm(X, (6,), out=torch.empty(5, 7)), "expected: shape (5, 6)"),
    "another dtype": (lambda: F.layer_norm(X, (6,), out=torch.empty(5, 6).double()), "torch.float32"),
    "no tensor": (lambda: F.rms_norm(X, (6,), out=[1]), "a torch.Tensor"),
    "a gradient": (lambda: F.layer_norm(X.clone().requires_grad_(), (6,), out=torch.empty(5, 6)), "no_grad"),
    "overlap": (lambda: F.layer_norm(X[:4], (6,), out=X[1:]), "shares memory"),
    "one of two": (lambda: F.add_rms_norm(X, X, (6,), out=torch.empty(5, 6)), "two tensors"),
    "the same twice": (lambda: F.add_rms_norm(X, X, (6,), out=(o := torch.empty(5, 6), o)), "share memory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_out_cannot_be_is_refused(name):
    call, text = REFUSED[name]
    before = X.clone()
    with pytest.raises(NormkitError) as error:
        call()
    assert text in str(error.value)
    assert torch.equal(X, before)


@pytest.mark.parametrize("shape", [(0, 8, 8), (4, 8, 0)])
def test_an_empty_out_may_have_any_strides(shape):
    """torch gives some empty tensors strides of 0; there is nothing that they could share."""
    x, out = torch.randn(shape), torch.empty_strided(shape, (0, 0, 0))
    assert F.instance_norm(x, out=out) is out
    assert F.layer_norm(x, shape[-1:], out=out) is out
