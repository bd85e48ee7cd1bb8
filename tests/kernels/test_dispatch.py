"""One table decides what runs."""

import inspect

import pytest
import torch

from normkit import kernels
from normkit.kernels import reference, torch_ops


def test_the_reference_is_last_and_refuses_nothing():
    assert list(kernels.BACKENDS)[-1] == "reference"
    assert reference.refuses("anything", torch.ones(1)) is None


@pytest.mark.parametrize("op", [n for n in torch_ops.__all__ if n != "refuses"])
def test_a_backend_has_the_references_operators(op):
    assert op in reference.__all__
    assert callable(getattr(torch_ops, op))
    theirs, ours = (inspect.signature(getattr(m, op)).parameters for m in (torch_ops, reference))
    named = {n for n, p in theirs.items() if p.kind is not p.VAR_KEYWORD}
    assert named <= set(ours) | {n for n, p in ours.items() if p.kind is p.VAR_KEYWORD}


def test_eager_calls_run_on_the_kernels():
    x = torch.randn(2, 3)
    call = {"axes": (1,), "weight": None, "bias": None, "eps": 1e-5}
    assert kernels.backend_for("layer_norm", x, **call) == "cpu"
    assert "torch.export" in torch_ops.refuses("layer_norm", x, **call)


EXPORT = [  # operator, arguments, what the reason says (None: taken)
    ("layer_norm", {"axes": (1,), "weight": None, "bias": None, "eps": 1e-5}, None),
    ("layer_norm", {"axes": (1,), "weight": torch.ones(3).double(), "bias": None, "eps": 1e-5}, "dtype"),
    (
        "group_norm",
        {"num_groups": 1, "weight": None, "bias": None, "eps": 1e-5, "axis": 1, "mask": torch.ones(1)},
        "mask",
    ),
    ("batch_norm", {"weight": None, "bias": None, "axis": 2}, "axis 1"),
    (
        "batch_norm",
        {"weight": None, "bias": None, "axis": 1, "num_batches_tracked": torch.ones(())},
        "count batches",
    ),
    ("normalize", {"axes": (0,), "weight": None, "bias": None, "center": True}, "last axes"),
    ("normalize", {"axes": (1,), "weight": torch.ones(2, 1), "bias": None, "center": True}, "last axes"),
    ("batch_norm", {"weight": None, "bias": None, "axis": 1, "process_group": object()}, "process_group"),
    ("rms_norm", {"axes": (1,), "weight": None, "zero_centered_weight": True}, None),
    ("add_layer_norm", {"residual": torch.ones(2, 3).double(), "axes": (1,)}, "one dtype"),
    ("unheard_of", {}, "torch has no unheard_of"),
]


@pytest.mark.parametrize(("op", "call", "reason"), EXPORT)
def test_torchs_operators_say_why_they_refuse(op, call, reason, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    said = torch_ops.refuses(op, torch.ones(2, 3), **call)
    assert said is None if reason is None else reason in said


def test_narrow_llama_rounding_is_left_to_the_reference(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    call = {
        "axes": (1,),
        "weight": None,
        "eps": 1e-6,
        "zero_centered_weight": False,
        "multiply": "after_cast",
    }
    assert kernels.backend_for("rms_norm", torch.ones(2, 3), **call) == "torch_ops"
    assert kernels.backend_for("rms_norm", torch.ones(2, 3).bfloat16(), **call) == "reference"
    gemma = {**call, "multiply": "before_cast", "zero_centered_weight": True}
    assert kernels.backend_for("rms_norm", torch.ones(2, 3).bfloat16(), **gemma) == "reference"


def test_group_norm_in_channels_last_is_left_to_the_reference(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    call = {"num_groups": 2, "weight": None, "bias": None, "eps": 1e-5, "axis": 1, "mask": None}
    x = torch.randn(2, 4, 3, 3)
    assert kernels.backend_for("group_norm", x, **call) == "torch_ops"
    assert kernels.backend_for("group_norm", x.to(memory_format=torch.channels_last), **call) == "reference"
