"""Every instruction set that this machine has computes the same, but for rounding."""

import os
import subprocess
import sys

import pytest
import torch

from normkit import functional as F

PROGRAM = """
import sys, torch
from normkit import functional as F
from normkit.kernels.cpu import library
x, image = torch.load(sys.argv[1])
results = F.layer_norm(x, (123,)), F.rms_norm(x.bfloat16(), (123,)), F.group_norm(image, 3)
torch.save((library.isa(), *results), sys.argv[2])
"""


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
def test_asking_for_less_than_the_machine_has(isa, tmp_path):
    x, image = torch.randn(9, 123), torch.randn(2, 6, 5, 7)
    torch.save((x, image), tmp_path / "in")
    subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "in", tmp_path / "out"],
        env={**os.environ, "NORMKIT_ISA": isa},
        check=True,
    )
    used, layer, rms, group = torch.load(tmp_path / "out")
    assert used in {"avx512": {"avx512", "avx2", "generic"}}.get(isa, {isa, "generic"}), (
        "what the machine has"
    )
    torch.testing.assert_close(layer, F.layer_norm(x, (123,)), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(rms, F.rms_norm(x.bfloat16(), (123,)), rtol=2**-7, atol=0)
    torch.testing.assert_close(group, F.group_norm(image, 3), rtol=1e-6, atol=1e-6)
