"""ONNX Runtime as a peer: a graph of one node, its inputs and outputs bound to ready tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]  # it ships no types
import torch
from onnx import TensorProto, ValueInfoProto, helper
from torch import Tensor

__all__ = ["session"]

# For each norm, plain and after an add: operator, domain, opset. The first that this version runs is taken.
OPERATORS = {
    ("LayerNorm", "forward"): [("LayerNormalization", "", 17)],
    ("RMSNorm", "forward"): [("RMSNormalization", "", 23), ("SimplifiedLayerNormalization", "", 17)],
    ("LayerNorm", "add"): [("SkipLayerNormalization", "com.microsoft", 17)],
    ("RMSNorm", "add"): [("SkipSimplifiedLayerNormalization", "com.microsoft", 17)],
}
_state = ort.capi.onnxruntime_pybind11_state
UNKNOWN = (_state.Fail, _state.InvalidGraph, _state.NotImplemented)  # what it raises for an unknown operator


def session(
    op: str, way: str, inputs: list[Tensor], eps: float, threads: int
) -> Callable[[], tuple[Tensor, ...]] | None:
    """One call of ONNX Runtime, or None if this version has no such operator."""
    outputs = [torch.empty_like(inputs[0]) for _ in range(2 if way == "add" else 1)]
    for operator, domain, opset in OPERATORS[op, way]:
        try:
            built = _build(operator, domain, opset, inputs, outputs, eps, threads)
        except UNKNOWN:
            continue
        return _bound(built, inputs, outputs)
    return None


def _build(
    operator: str,
    domain: str,
    opset: int,
    inputs: list[Tensor],
    outputs: list[Tensor],
    eps: float,
    threads: int,
) -> ort.InferenceSession:
    def info(name: str, tensor: Tensor) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(tensor.shape))

    given = [info(f"in{i}", t) for i, t in enumerate(inputs)]
    made = [info(f"out{i}", t) for i, t in enumerate(outputs)]
    names = ["out0"] if len(outputs) == 1 else ["out0", "", "", "out1"]  # the sum is the fourth output
    axis: dict[str, Any] = {} if domain else {"axis": -1}
    node = helper.make_node(
        operator, [f"in{i}" for i in range(len(inputs))], names, domain=domain, epsilon=eps, **axis
    )
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(
        helper.make_graph([node], "norm", given, made), opset_imports=opsets, ir_version=10
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # By default its threads spin for 50 ms after a call, on cores that the other candidates need. One
    # millisecond lasts from one of its own calls to the next.
    options.add_session_config_entry("session.intra_op.spin_duration_us", "1000")
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _bound(
    built: ort.InferenceSession, inputs: list[Tensor], outputs: list[Tensor]
) -> Callable[[], tuple[Tensor, ...]]:
    binding = built.io_binding()
    for i, tensor in enumerate(inputs):
        binding.bind_input(f"in{i}", "cpu", 0, np.float32, tuple(tensor.shape), tensor.data_ptr())
    for i, tensor in enumerate(outputs):
        binding.bind_output(f"out{i}", "cpu", 0, np.float32, tuple(tensor.shape), tensor.data_ptr())
    ready = tuple(outputs)

    def call() -> tuple[Tensor, ...]:
        built.run_with_iobinding(binding)
        return ready

    call.inputs = inputs  # type: ignore[attr-defined]  # bound by address: they must live as long as the call
    return call
