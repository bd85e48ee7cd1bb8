"""The Triton kernels as a compiler for GPUs sees them: no spills, no float64, one read and one write."""

import re

import pytest
import torch

pytest.importorskip("triton", reason="Triton is missing")
from benchmarks import gpu

from normkit.kernels.triton.versions import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="what is interpreted is not compiled")
ROWS = [name for name in gpu.CASES if "norm" in name]
# (loads, stores) of tensors of the input's size, an element
TRAFFIC = {
    "layer_norm": (1, 1),
    "rms_norm": (1, 1),
    "add_layer_norm": (2, 2),
    "add_rms_norm": (2, 2),
    "layer_norm_backward": (2, 1),
    "rms_norm_backward": (2, 1),
    "add_layer_norm_backward": (3, 1),
}


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("case", ROWS)
def test_rows_are_read_once_and_stay_in_registers(case, dtype, arch):
    first = gpu.launches(case, 4096, gpu.DTYPES[dtype])[0]
    found = gpu.measure(first, arch, dtype, 4096, None)
    assert (found.spills, found.fp64) == (0, 0)
    assert (found.loads_per_element, found.stores_per_element) == TRAFFIC[case]
    assert found.load_bits == 128


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
@pytest.mark.parametrize("case", ["columns", "spans"])
def test_groups_do_not_spill(case, arch):
    for one in gpu._unique(gpu.launches(case, 768, torch.bfloat16)):
        found = gpu.measure(one, arch, "bf16", 768, None)
        assert (found.spills, found.fp64) == (0, 0), one.kernel


def test_a_kernel_that_spills_is_found():
    """A row of 65,536 numbers in one program: the limit in tiles.py is there for a reason."""
    first = gpu.launches("layer_norm", 4096, torch.float32)[0]
    constants = dict(first.constants) | {"D": 65536, "BLOCK": 65536}
    one = gpu.Launch(**{**first.__dict__, "constants": tuple(constants.items())})
    assert gpu.measure(one, "sm_90", "fp32", 65536, None).spills > 0


@pytest.mark.parametrize("case", gpu.CASES)
def test_nothing_is_approximate_or_fused_or_left_to_chance(case):
    """Divisions and roots are rounded as IEEE says, denormals stay, and sums have one order."""
    for one in gpu._unique(gpu.launches(case, 768, torch.float32)):
        text = gpu.compile_for(one, "sm_90").asm["ptx"]
        assert not re.findall(r"\.approx|\.ftz|\.full\.|\bfma\.|\bred\.|\batom\.", text), one.kernel
