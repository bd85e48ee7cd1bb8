"""The same bits for any number of threads, and for a row whatever the batch around it."""

import pytest
import torch

from normkit import functional as F

IMAGE = (6, 24, 33, 31)
CALLS = {  # on an input of several chunks, blocks and tiles
    "layer_norm": ((5000, 123), lambda x, w, b: F.layer_norm(x, (123,), w, b)),
    "rms_norm": ((5000, 123), lambda x, w, b: F.rms_norm(x, (123,), w)),
    "add_layer_norm": ((5000, 123), lambda x, w, b: F.add_layer_norm(x, x.flip(0), (123,), w, b)[0]),
    "batch_norm tokens": ((5000, 123), lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)),
    "batch_norm": (IMAGE, lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)),
    "group_norm": (IMAGE, lambda x, w, b: F.group_norm(x, 4, w, b)),
    "instance_norm": (IMAGE, lambda x, w, b: F.instance_norm(x, None, None, w, b)),
    "layer_norm of channels": (IMAGE, lambda x, w, b: F.layer_norm(x, (24,), w, b, axis=1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "channels_last"),
    [(n, last) for n, (shape, _) in CALLS.items() for last in (False, True)[: len(shape) // 2]],
)
def test_outputs_and_gradients_have_the_same_bits_for_1_2_and_8_threads(name, channels_last, dtype):
    shape, norm = CALLS[name]
    torch.manual_seed(0)
    size = shape[1]
    x = torch.randn(shape).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    weight, bias, grad = torch.rand(size).to(dtype), torch.randn(size).to(dtype), torch.randn(shape).to(dtype)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 8):
        torch.set_num_threads(threads)
        inputs = [t.clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, weight, bias)]
        y = norm(*inputs)
        used = [t for t in inputs if t is not inputs[2] or name != "rms_norm"]
        results.append([y, *torch.autograd.grad(y, used, grad)])
    torch.set_num_threads(before)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [1, 7, 64, 123, 768, 5000])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_a_row_has_the_same_bits_whatever_the_batch_around_it(op, dim, dtype):
    torch.manual_seed(dim)
    x, grad = torch.randn(2, 67, dim).to(dtype)
    weight = torch.rand(dim).to(dtype)
    norm = getattr(F, op)

    def run(rows):
        inputs = x[rows].clone().requires_grad_()
        y = norm(inputs, (dim,), weight)
        return y, torch.autograd.grad(y, inputs, grad[rows])[0]

    together = run(slice(None))
    for row in (0, 1, 31, 64, 65, 66):
        alone = run(slice(row, row + 1))
        assert all(torch.equal(a[row], b[0]) for a, b in zip(together, alone, strict=True))
    pair = run(slice(64, 66))
    assert all(torch.equal(a[64:66], b) for a, b in zip(together, pair, strict=True))


def test_a_view_has_the_same_bits_as_its_copy():
    x = torch.randn(9, 101)[:, 1:]  # not aligned
    assert torch.equal(F.layer_norm(x, (100,)), F.layer_norm(x.contiguous(), (100,)))
