"""``out=`` next to an input in the same memory: as close as can be, and not one number closer."""

import pytest
import torch

from normkit import NormkitError
from normkit import functional as F

ROWS, SIZE = 3, 4
N = ROWS * SIZE
CALLS = {
    "layer_norm": lambda x, out: F.layer_norm(x, (SIZE,), out=out),
    "rms_norm": lambda x, out: F.rms_norm(x, (SIZE,), out=out),
    "layer_norm of rows": lambda x, out: F.layer_norm(x, (ROWS,), axis=0, out=out),
    "batch_norm": lambda x, out: F.batch_norm(x, None, None, training=True, out=out),
    "group_norm": lambda x, out: F.group_norm(x, 2, out=out),
    "normalize": lambda x, out: F.normalize(x, "a [b]", out=out),
}
over_calls = pytest.mark.parametrize("name", CALLS)


def at(memory, start):
    return memory[start : start + N].view(ROWS, SIZE)


@over_calls
@pytest.mark.parametrize(("x_at", "out_at"), [(0, N), (N, 0)])
def test_out_may_lie_right_before_or_behind_the_input(name, x_at, out_at):
    memory = torch.randn(2 * N)
    x, out = at(memory, x_at), at(memory, out_at)
    before, expected = x.clone(), CALLS[name](x.clone(), torch.empty(ROWS, SIZE))
    assert CALLS[name](x, out) is out
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    assert torch.equal(x, before)


@over_calls
@pytest.mark.parametrize(("x_at", "out_at"), [(0, N - 1), (N - 1, 0)])
def test_out_may_not_share_a_single_number_with_the_input(name, x_at, out_at):
    memory = torch.randn(2 * N)
    before = memory.clone()
    with pytest.raises(NormkitError, match="shares memory with an input"):
        CALLS[name](at(memory, x_at), at(memory, out_at))
    assert torch.equal(memory, before)


@pytest.mark.parametrize("start", [N - 1, N - SIZE + 1])
def test_out_may_not_share_a_single_number_with_a_weight(start):
    memory = torch.randn(2 * N)
    with pytest.raises(NormkitError, match="shares memory with an input"):
        F.layer_norm(torch.randn(ROWS, SIZE), (SIZE,), memory[start : start + SIZE], out=at(memory, 0))


def test_out_may_lie_right_before_a_weight():
    memory = torch.randn(2 * N)
    x, weight = torch.randn(ROWS, SIZE), memory[N : N + SIZE]
    expected = F.layer_norm(x, (SIZE,), weight)
    assert torch.equal(F.layer_norm(x, (SIZE,), weight, out=at(memory, 0)), expected)


def test_two_outputs_may_touch_and_not_overlap():
    memory, x = torch.empty(2 * N), torch.randn(ROWS, SIZE)
    y, total = F.add_rms_norm(x, x, (SIZE,), out=(at(memory, 0), at(memory, N)))
    assert torch.equal(total, x + x)
    assert torch.equal(y, F.add_rms_norm(x, x, (SIZE,))[0])
    with pytest.raises(NormkitError, match="share memory"):
        F.add_rms_norm(x, x, (SIZE,), out=(at(memory, 0), at(memory, N - 1)))
