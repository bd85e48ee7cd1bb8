"""torch.export and ONNX: one node a norm, and the same numbers in onnxruntime."""

import collections

import onnx
import onnxruntime
import pytest
import torch
from family import FAMILY, POWER, call, over
from torch import nn

import normkit as nk

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
# torch.export and its ONNX exporter warn about their own insides.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@over(FAMILY + POWER)
def test_every_layer_exports_for_evaluation_with_the_same_numbers(case):
    layer, inputs = case.layer(torch.float32).eval(), case.inputs(torch.float32)
    first, *rest = inputs.items()
    program = torch.export.export(layer, (first[1],), dict(rest))
    torch.testing.assert_close(call(program.module(), inputs), call(layer, inputs), **CLOSE)


def test_a_dynamic_batch_exports():
    layer = nn.Sequential(nk.LayerNorm(6), nk.Norm("b [d]", d=6, affine="d"), nk.RMSNorm(6)).eval()
    program = torch.export.export(layer, (torch.randn(4, 6),), dynamic_shapes=({0: torch.export.Dim("b")},))
    x = torch.randn(9, 6)
    torch.testing.assert_close(program.module()(x), layer(x), **CLOSE)


@pytest.mark.parametrize(
    ("layer", "operator"),
    [
        (nk.LayerNorm(6), "aten.layer_norm.default"),
        (nk.RMSNorm(6), "aten.rms_norm.default"),
        (nk.Norm("... [d]", d=6), "aten.layer_norm.default"),
        (nk.GroupNorm(2, 4), "aten.group_norm.default"),
        (nk.BatchNorm1d(4).eval(), "aten.batch_norm.default"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_exported_graph_holds_torchs_own_operator(layer, operator):
    graph = torch.export.export(layer, (torch.randn(3, 4, 6),)).graph
    operators = [str(n.target) for n in graph.nodes if n.op == "call_function"]
    assert [o for o in operators if o != "aten.reshape.default"] == [operator]


class _Residual(nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op, self.weight = op, nn.Parameter(torch.rand(6))

    def forward(self, x):
        return getattr(nk.functional, self.op)(x, x * 2, (6,), self.weight, eps=1e-6)


ONNX = [  # layer, shape, nodes at opset 23
    (nk.LayerNorm(6), (2, 3, 6), {"LayerNormalization": 1}),
    (nk.LayerNorm(6, bias=False), (2, 3, 6), {"LayerNormalization": 1}),
    (nk.LayerNorm(6, elementwise_affine=False), (2, 3, 6), {"LayerNormalization": 1}),
    (nk.LayerNorm((3, 6)), (2, 3, 6), {"LayerNormalization": 1}),
    (nk.Norm("b l [d]", d=6), (2, 3, 6), {"LayerNormalization": 1}),
    (nk.LayerNorm(6, axis=1), (2, 6, 3, 3), {"LayerNormalization": 1, "Transpose": 2}),
    (nk.RMSNorm(6), (2, 3, 6), {"RMSNormalization": 1}),
    (nk.RMSNorm(6, eps=1e-6), (2, 3, 6), {"RMSNormalization": 1}),
    (nk.RMSNorm(6, zero_centered_weight=True), (2, 3, 6), {"RMSNormalization": 1}),
    (nk.RMSNorm(6, multiply="after_cast"), (2, 3, 6), {"RMSNormalization": 1}),
    (nk.Norm("b l [d]", d=6, center=False), (2, 3, 6), {"RMSNormalization": 1}),
    (nk.GroupNorm(2, 6), (2, 6, 3, 3), {"GroupNormalization": 1}),
    (nk.InstanceNorm2d(6, affine=True), (2, 6, 3, 3), {"InstanceNormalization": 1}),
    (nk.BatchNorm2d(6), (2, 6, 3, 3), {"BatchNormalization": 1}),
    (_Residual("add_layer_norm"), (2, 3, 6), {"Mul": 1, "Add": 1, "LayerNormalization": 1}),
    (_Residual("add_rms_norm"), (2, 3, 6), {"Mul": 1, "Add": 1, "RMSNormalization": 1}),
]


@pytest.mark.parametrize(
    ("layer", "shape", "nodes"), ONNX, ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else ""
)
def test_onnx_has_one_node_a_norm_and_onnxruntime_gives_the_same_numbers(layer, shape, nodes, tmp_path):
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter)
    layer.eval()
    x = torch.randn(shape)
    path = tmp_path / "norm.onnx"
    torch.onnx.export(layer, (x,), path, opset_version=23, verbose=False)
    graph = onnx.load(path).graph
    assert collections.Counter(node.op_type for node in graph.node) == nodes
    session = onnxruntime.InferenceSession(path)
    outputs = session.run(None, {graph.input[0].name: x.numpy()})
    expected = layer(x)
    for got, value in zip(outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(torch.from_numpy(got), value.detach(), **CLOSE)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("layer", [nk.LayerNorm(6), nk.RMSNorm(6), nk.GroupNorm(3, 6), nk.BatchNorm1d(6)])
def test_the_old_exporter_works_with_a_dynamic_batch(layer, tmp_path):
    layer.eval()
    path = tmp_path / "norm.onnx"
    axes = {"x": {0: "batch"}}
    torch.onnx.export(layer, (torch.randn(4, 6),), path, dynamo=False, input_names=["x"], dynamic_axes=axes)
    x = torch.randn(7, 6)
    (got,) = onnxruntime.InferenceSession(path).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), layer(x).detach(), **CLOSE)


def test_mixed_dtypes_export_as_they_run():
    layer, x = nk.BatchNorm1d(6, affine=False).eval(), torch.randn(4, 6).double()
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


def test_what_torch_cannot_express_is_exported_in_full(tmp_path):
    layer, x = nk.BatchNorm1d(6, axis=-1).eval(), torch.randn(2, 3, 6)
    nn.init.uniform_(layer.running_var, 0.5, 2)
    path = tmp_path / "norm.onnx"
    torch.onnx.export(layer, (x,), path, opset_version=23, verbose=False)
    graph = onnx.load(path).graph
    (got,) = onnxruntime.InferenceSession(path).run(None, {graph.input[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), layer(x).detach(), **CLOSE)
