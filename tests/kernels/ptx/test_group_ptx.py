"""The PTX of the group kernels, run without a GPU: right numbers, and as many reads as they promise."""

import pytest
import torch
from truth import on_reference

pytest.importorskip("triton", reason="Triton is missing")
from normkit.kernels.triton.versions import INTERPRETED

from .launching import Emulated

pytestmark = pytest.mark.skipif(INTERPRETED, reason="what is interpreted is not compiled")
SHARE = 1e-6  # of the largest true number
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}
EPS = 1e-5
# k0, r1, k2, r3, i: which of five axes share a mean
SIZES = {
    "BatchNorm": (1, 3, 8, 1, 49),
    "BatchNorm, channels_last": (1, 130, 24, 1, 1),
    "InstanceNorm": (2, 1, 6, 1, 100),
    "GroupNorm": (3, 1, 2, 4, 64),
    "GroupNorm, channels_last": (2, 70, 3, 4, 1),
}


def run(sizes, dtype, arch, mean=0.0, mask=None, given=False):
    """Outputs, gradients and traffic on the emulator, and what is true of them."""
    from normkit.kernels.triton import groups, rows

    torch.manual_seed(sum(sizes))
    k0, r1, k2, r3, i = sizes
    x, dy = ((torch.randn(sizes) + m).to(dtype) for m in (mean, 0))
    weight, bias = torch.randn(2, k2 * r3).to(dtype)
    running = (torch.randn(k0 * k2), torch.rand(k0 * k2) + 0.5) if given else (None, None)
    machine = Emulated(arch)
    needed = (True, True)
    with pytest.MonkeyPatch.context() as patch:
        for module in (groups, rows):
            patch.setattr(module, "launch", machine)
        y, stats = groups.groups(x, *sizes, weight, bias, False, mask, *running, EPS, True)
        back = (weight, bias, False, mask, stats, given, EPS, True, *needed)
        gradients = groups.groups_backward(dy, x, *sizes, *back)
    got = dict(zip(("y", "dx", "dweight", "dbias"), (y, *gradients), strict=True))

    wide = [t.double().requires_grad_() for t in (x, weight, bias)]
    gain, shift = (t.view(k2, r3, 1) for t in wide[1:])
    if given:
        m, v = (t.double().view(k0, 1, k2, 1, 1) for t in running)
        true_y = (wide[0] - m) / (v + EPS).sqrt() * gain + shift
    else:
        broad = None if mask is None else mask.view(k0, r1, 1, 1, i).expand(sizes)
        call = {"axes": (1, 3, 4), "weight": gain, "bias": shift, "eps": EPS, "center": True, "mask": broad}
        true_y = on_reference("normalize", wide[0], **call)
    true = (true_y, *torch.autograd.grad(true_y, wide, dy.double()))
    return got, dict(zip(got, true, strict=True)), machine.traffic


def assert_right(got, true):
    for name, value in got.items():
        wanted = true[name].detach().reshape(value.shape)
        off = (value.double() - wanted).abs() - ROUNDING[value.dtype] * wanted.abs()
        assert off.max() <= SHARE * wanted.abs().max(), (name, (off.max() / wanted.abs().max()).item())


@pytest.mark.parametrize(
    ("arch", "dtype", "mean"),
    [
        ("sm_80", torch.float32, 1e4),
        ("sm_90", torch.bfloat16, 0.0),
        ("sm_100", torch.float16, 0.0),
        ("sm_120", torch.float32, 1e6),
    ],
    ids=str,
)
@pytest.mark.parametrize("norm", SIZES)
def test_outputs_and_gradients_are_those_of_float64(norm, arch, dtype, mean):
    got, true, traffic = run(SIZES[norm], dtype, arch, mean)
    assert_right(got, true)
    assert reads_and_writes(traffic, "x_ptr") == (4, 0)  # twice forward, twice backward
    assert reads_and_writes(traffic, "y_ptr") == (0, 1)
    assert reads_and_writes(traffic, "dy_ptr") == (2, 0)
    assert reads_and_writes(traffic, "dx_ptr") == (0, 1)


def reads_and_writes(traffic, name):
    """Of every byte, by all kernels together."""
    found = [tensors[name] for _, tensors in traffic if name in tensors]
    reads, writes = (sum(getattr(t, what) for t in found) for what in ("reads", "writes"))
    assert reads.min() == reads.max()
    assert writes.min() == writes.max()
    return int(reads[0]), int(writes[0])


def test_a_mask_is_left_out():
    sizes = SIZES["BatchNorm"]
    mask = torch.rand(sizes[1], sizes[4]) > 0.3
    got, true, _ = run(sizes, torch.float32, "sm_80", mask=mask)
    assert_right(got, true)


def test_given_statistics_are_used():
    got, true, traffic = run(SIZES["BatchNorm"], torch.float32, "sm_90", given=True)
    assert_right(got, true)
    assert "group_moments" not in [kernel for kernel, _ in traffic]


@pytest.mark.parametrize("kernel", ["group_moments", "group_apply", "group_sums", "group_backward"])
def test_where_a_channel_begins_is_a_number_of_64_bits(kernel):
    """Of one sample, channels may lie 2^31 numbers apart."""
    from benchmarks import gpu

    launches = gpu._unique(gpu.launches("spans", 64, torch.float32))
    one = next(launch for launch in launches if launch.kernel == kernel)
    text = gpu.compile_for(one, "sm_90").asm["ttir"]
    wide = [line for line in text.splitlines() if "arith.muli" in line and "xi32>" in line]
    assert not [line for line in wide if "%c" in line.split("arith.muli")[1]], wide
