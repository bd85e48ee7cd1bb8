"""The operators as torch sees them: opcheck, fake tensors, and refusals of what would read foreign memory."""

import pytest
import torch
from operator_calls import BATCH, GROUPS, IMAGE, B, C, W, X, calls
from torch._subclasses.fake_tensor import FakeTensorMode

from normkit import kernels
from normkit.kernels.operators import OPERATORS

CALLS = calls(torch.ones(3, 6).double())


def test_every_operator_is_checked():
    assert set(CALLS) == set(OPERATORS)


@pytest.mark.parametrize(
    ("name", "number"), [(n, i) for n, calls in CALLS.items() for i in range(len(calls))]
)
def test_torchs_own_checks_pass(name, number):
    torch.library.opcheck(getattr(torch.ops.normkit, name).default, CALLS[name][number])


@pytest.mark.parametrize(
    ("name", "number"), [(n, i) for n, calls in CALLS.items() for i in range(len(calls))]
)
def test_fake_results_have_the_shapes_dtypes_and_strides_of_real_ones(name, number):
    call = CALLS[name][number]
    real = getattr(torch.ops.normkit, name)(*call)
    with FakeTensorMode() as mode:
        fake = getattr(torch.ops.normkit, name)(
            *(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in call)
        )
    outputs = zip(*((r if isinstance(r, (tuple, list)) else [r]) for r in (real, fake)), strict=True)
    for a, b in outputs:
        if a is not None:
            assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


OUT = torch.empty(5, 8)


def freed(*shape):
    """A tensor whose storage was given back, as FSDP does between two uses."""
    t = torch.ones(2, *shape)[1]
    t.untyped_storage().resize_(0)
    return t


BAD = {
    "a weight that is too short": ("rows", (X, W[:7], None, 1, 1e-5, 1)),
    "more axes than there are": ("rows", (X, None, None, 3, 1e-5, 1)),
    "integers": ("rows", (X.long(), None, None, 1, 1e-5, 1)),
    "a residual of another shape": ("rows_add", (X, X[:4], None, None, 1, 1e-5, 1)),
    "an out of another shape": ("rows_out", (X, None, None, 1, 1e-5, 1, torch.empty(4, 8))),
    "an out within the input": ("rows_out", (X[:3], None, None, 1, 1e-5, 1, X[2:])),
    "an out that is the input by columns": ("rows_out", (X[:, :5].T, None, None, 1, 1e-5, 1, X[:, :5])),
    "an out within the weight": ("rows_out", (X[:1], X[1], None, 1, 1e-5, 1, X[1:2])),
    "an out within the bias": ("rows_out", (X[:1], None, X[1], 1, 1e-5, 1, X[1:2])),
    "a sum within a term": ("rows_add_out", (X[:3], OUT[:3], None, None, 1, 1e-5, 1, OUT[3:], X[1:4])),
    "two outs in one place": ("rows_add_out", (X, X, None, None, 1, 1e-5, 1, OUT, OUT)),
    "statistics of another input": (
        "rows_backward",
        (X, X, W, W, torch.ones(2, 4), None, 1, 1e-5, 1, *[True] * 3),
    ),
    "freed numbers": ("rows", (freed(5, 8), W, B, 1, 1e-5, 1)),
    "a freed residual": ("rows_add", (X, freed(5, 8), W, B, 1, 1e-5, 1)),
    "a freed weight": ("rows", (X, freed(8), B, 1, 1e-5, 1)),
    "a freed bias": ("rows", (X, W, freed(8), 1, 1e-5, 1)),
    "a freed out": ("rows_out", (X, W, B, 1, 1e-5, 1, freed(5, 8))),
    "a freed gradient": (
        "rows_backward",
        (freed(5, 8), X, W, W, torch.ones(2, 5), None, 1, 1e-5, 1, *[True] * 3),
    ),
    "a parameter turned round": ("rows", (torch.ones(2, 3, 4), torch.ones(4, 3), None, 2, -1, 1e-5, 1)),
    "sizes of another input": ("groups", (IMAGE, 2, 1, 3, 2, 13, *GROUPS[5:])),
    "a channel too many": ("groups", (IMAGE, *GROUPS[:5], torch.rand(7), *GROUPS[6:])),
    "a mask of another size": ("groups", (IMAGE, *BATCH[:8], torch.ones(2, 11) > 0, *BATCH[9:])),
    "a weight of another width": ("linear", (X, torch.rand(3, 7), None)),
    "a bias too short": ("linear", (X, torch.rand(3, 8), torch.rand(2))),
    "a weight of another dtype": ("linear", (X, torch.rand(3, 8).double(), None)),
    "a turned weight": ("linear", (X, torch.rand(8, 3).T, None)),
    "a running mean too short": ("update_running", (C[:5], C, torch.ones(3, 6).double(), 0.1)),
}


@pytest.mark.parametrize("name", BAD)
def test_operators_refuse_what_would_read_foreign_memory(name):
    operator, call = BAD[name]
    with pytest.raises(RuntimeError):
        getattr(torch.ops.normkit, operator)(*call)


def test_the_instruction_set_has_a_name():
    assert kernels.isa() in {"generic", "avx2", "avx512"}
