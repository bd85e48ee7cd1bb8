"""The short way of a GPU's calls, tried on the CPU: the extension asks, keeps, launches."""

import pytest
import torch

from normkit import functional as F
from normkit.kernels.by_reference import STATISTICS
from normkit.kernels.cpu import eager

pytestmark = pytest.mark.skipif(eager.MODULE is None, reason="the extension is not built")
ROWS = bytes(range(7))
STREAM = 77


class Device:
    """Kernels that do nothing but say what they were given."""

    def __init__(self):
        self.looked, self.launched, self.again = [], [], []
        self.takes, self.program = True, (([("what",), ROWS, None],), 0)
        self.known = eager.MODULE.serve("cpu", self.rows, self.groups, self.launch, lambda index: STREAM)

    def rows(self, *call):
        self.looked.append(call)
        return tuple([[*step] for step in self.program[0]]), self.program[1]

    def groups(self, *call):
        return self.rows(*call) if self.takes else None

    def launch(self, what, tensors, device):
        self.launched.append((what, tensors, device))
        return self.again_with, (5, 1, 1), ("function", "metadata", None, None, None), (0.5, True)

    def again_with(self, *args):
        self.again.append(args)


@pytest.fixture
def device():
    yield Device()
    eager.MODULE.serve("cpu", None, None, None, None)


def aligned(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)  # torch aligns to 64 bytes


def test_a_call_is_looked_at_once_and_launched_by_its_handle_from_then_on(device):
    x, w, b = aligned(4, 16), aligned(16), aligned(16)
    F.layer_norm(x, (16,), w, b)
    ((what, tensors, where),) = device.launched
    assert what == ("what",)
    assert where == x.device
    assert [t is None for t in tensors] == [False, True, False, False, False, True, True]
    assert tensors[0] is x
    y = F.layer_norm(x, (16,), w, b)
    (args,) = device.again
    head = (5, 1, 1, STREAM, "function", "metadata", None, None, None)
    addresses = (x.data_ptr(), None, w.data_ptr(), b.data_ptr(), y.data_ptr(), None, None)
    assert args == (*head, *addresses, 0.5, True)
    assert len(device.looked) == len(device.launched) == 1


def test_another_dtype_shape_or_eps_is_another_kind(device):
    x, w = aligned(4, 16), aligned(16)
    F.rms_norm(x, (16,), w)
    for other in (
        lambda: F.rms_norm(x, (16,), w, 1e-3),
        lambda: F.rms_norm(x, (16,), w.bfloat16()),
        lambda: F.rms_norm(x.half(), (16,), w),
        lambda: F.rms_norm(x[:2], (16,), w),
        lambda: F.rms_norm(x, (16,)),
        lambda: F.rms_norm(x, (16,), w, zero_centered_weight=True),
        lambda: F.rms_norm(x.requires_grad_(), (16,), w),
        lambda: F.layer_norm(x.detach(), (16,), w),
    ):
        before = len(device.looked)
        other()
        assert len(device.looked) == before + 1
        other()
        assert len(device.looked) == before + 1
    F.rms_norm(x.detach().view(2, 2, 16), (16,), w)  # rows are rows
    F.rms_norm(x.detach().view(2, 2, 16), (16,), w)
    assert len(device.known) == 9


def test_an_address_that_does_not_divide_goes_by_triton(device):
    whole = torch.randn(4 * 16 + 1)
    x = whole[1:].view(4, 16)
    for _ in range(3):
        F.layer_norm(x, (16,))
    assert len(device.launched) == 3
    F.layer_norm(whole[:-1].view(4, 16), (16,))
    assert len(device.again) == 1


def test_a_call_that_the_kernels_do_not_take_goes_the_long_way(device):
    device.takes = False
    x = torch.randn(2, 4, 3)
    y = F.group_norm(x, 2)
    assert not device.launched
    assert list(device.known.values()) == [None]
    torch.testing.assert_close(y, torch.nn.functional.group_norm(x, 2))


def test_what_is_not_ordinary_is_not_asked_about(device):
    x, w = aligned(4, 16), aligned(16)
    F.layer_norm(x.t(), (4,))
    F.layer_norm(x, (16,), out=torch.empty(4, 16))
    F.layer_norm(x[:0], (16,), w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        F.layer_norm(x, (16,), w)
    torch.func.vmap(lambda v: F.layer_norm(v, (16,), w))(x)
    with torch.autograd.forward_ad.dual_level():
        F.layer_norm(torch.autograd.forward_ad.make_dual(x, x), (16,), w)
    assert not device.looked


def test_a_sum_gives_both_outputs_and_its_gradients_go_to_python(device):
    x, residual, w, b = aligned(4, 16), aligned(4, 16), aligned(16), aligned(16).requires_grad_()
    seen = []

    def backward(dy, dtotal, total, weight, bias, stats, needed, dims, eps, kind):
        seen.append((needed, stats.shape, dims, eps))
        return None, None, torch.ones(16)

    before = eager.MODULE.set_backward(backward, None)
    try:
        y, total = F.add_layer_norm(x, residual, (16,), w, b)
        tensors = device.launched[0][1]
        assert [t is None for t in tensors] == [False] * 7
        assert tensors[4].data_ptr() == y.data_ptr()
        assert tensors[5].data_ptr() == total.data_ptr()
        y.sum().backward()
    finally:
        eager.MODULE.set_backward(*before)
    assert seen == [((False, False, True), (2, 4), 1, 1e-5)]
    assert b.grad.tolist() == [1.0] * 16


def test_the_steps_of_a_batch_norm_share_what_they_work_with(device):
    x, w, b, mean, var = torch.randn(2, 4, 3), aligned(4), aligned(4), aligned(4), aligned(4)
    # x mean var weight bias y stats work none
    device.program = (
        ([1, bytes([0, 8, 7]), None], [2, bytes([7, 6]), None], [3, bytes([1, 2, 6]), None]),
        40,
    )
    version = mean._version
    y = F.batch_norm(x, mean, var, w, b, training=True, momentum=0.25)
    assert [what for what, _, _ in device.launched] == [1, 2, 3]
    (_, none, work), (same, stats), (m, v, _) = (tensors for _, tensors, _ in device.launched)
    assert none is None
    assert work.data_ptr() == same.data_ptr()
    assert work.numel() == 40
    assert stats.shape == (STATISTICS, 4)
    assert (m.data_ptr(), v.data_ptr()) == (mean.data_ptr(), var.data_ptr())
    assert mean._version == version + 1
    assert y.shape == x.shape
    assert device.looked[0][1:3] == (None, (1, 2, 4, 1, 3))
    assert device.looked[0][7:] == (False, 0.25, 1e-5)
    F.batch_norm(x, mean, var, w, b, training=True, momentum=0.25)
    assert len(device.again) == 3


def test_a_driver_that_fails_is_an_exception_and_the_next_call_is_tried_again(device):
    x = aligned(4, 16)

    def broken(what, tensors, where):
        raise RuntimeError("no such device")

    eager.MODULE.serve("cpu", device.rows, device.groups, broken, lambda index: 0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such device"):
            F.layer_norm(x, (16,))
    eager.MODULE.serve("cpu", device.rows, device.groups, device.launch, lambda index: 1 / 0)
    F.layer_norm(x, (16,))
    with pytest.raises(ZeroDivisionError):
        F.layer_norm(x, (16,))


def test_shapes_that_never_come_again_do_not_fill_the_memory(device):
    for n in range(1, 4200):
        eager.MODULE.layer_norm(torch.empty(n, 1), (1,), None, None, 1e-5, None)
    assert len(device.known) < 4097


def test_what_cannot_be_said_now_is_asked_again(device):
    answers = [NotImplemented, device.program]
    eager.MODULE.serve("cpu", lambda *call: answers.pop(0), None, device.launch, lambda index: 0)
    x = aligned(4, 16)
    F.layer_norm(x, (16,))
    assert not device.launched
    F.layer_norm(x, (16,))
    assert len(device.launched) == 1


def test_tensors_of_two_devices_are_declined():
    meta = torch.empty(16, device="meta")
    assert eager.MODULE.layer_norm(torch.randn(4, 16), (16,), meta, None, 1e-5, None) is None
    assert eager.MODULE.layer_norm(torch.empty(4, 16, device="meta"), (16,), None, None, 1e-5, None) is None
