"""Which backend a GPU's tensors reach, asked without one: fake tensors of a device declared ready."""

import json

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import normkit as nk
from normkit import functional as F
from normkit.errors import NormkitError
from normkit.kernels import admission
from normkit.kernels.triton import readiness


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function).removesuffix(".default"))
        return function(*args, **(kwargs or {}))


@pytest.fixture
def ready(monkeypatch):
    monkeypatch.setitem(readiness._STATE, ("cuda", 0), "")


CALLS = {
    "layer_norm": (lambda x, p: F.layer_norm(x, x.shape[-1:], *p), (2, 3, 8), "normkit.rows"),
    "rms_norm": (lambda x, p: F.rms_norm(x, x.shape[-1:], p[0]), (2, 3, 8), "normkit.rows"),
    "add_layer_norm": (lambda x, p: F.add_layer_norm(x, x, x.shape[-1:], *p), (3, 8), "normkit.rows_add"),
    "add_rms_norm": (lambda x, p: F.add_rms_norm(x, x, x.shape[-1:], p[0]), (3, 8), "normkit.rows_add"),
    "group_norm": (lambda x, p: F.group_norm(x, 2, *p), (2, 8, 3, 3), "normkit.groups"),
    "instance_norm": (lambda x, p: F.instance_norm(x, None, None, *p), (2, 8, 3, 3), "normkit.groups"),
    "batch_norm": (
        lambda x, p: F.batch_norm(x, None, None, *p, training=True),
        (2, 8, 3, 3),
        "normkit.groups",
    ),
    "normalize": (lambda x, p: F.normalize(x, "[b l] d"), (2, 3, 8), "normkit.groups"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_every_norm_of_a_gpus_tensor_is_one_operator_of_ours(name, dtype, ready):
    call, shape, operator = CALLS[name]
    with FakeTensorMode(), Seen() as seen:
        x = torch.empty(shape, device="cuda", dtype=dtype)
        parameters = [torch.empty(8, device="cuda", dtype=dtype) for _ in range(2)]
        del seen.names[:]
        out = call(x, parameters)
    assert [n for n in seen.names if n.startswith("normkit")] == [operator]
    y = out[0] if isinstance(out, tuple) else out
    assert (y.shape, y.dtype, y.device.type) == (torch.Size(shape), dtype, "cuda")


@pytest.mark.parametrize("name", CALLS)
def test_a_compiled_norm_is_one_graph_for_every_size_with_one_operator_of_ours(name, monkeypatch):
    """The device is asked about while torch.compile traces."""
    call, shape, operator = CALLS[name]
    asked, graphs = [], []
    monkeypatch.setattr(readiness, "_STATE", {})
    monkeypatch.setattr(readiness, "_look", lambda *device: asked.append(device) or "")

    def capture(graph, _):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=capture)
    with FakeTensorMode():
        parameters = [torch.empty(8, device="cuda") for _ in range(2)]
        for size in (shape[0], shape[0] + 3):
            x = torch.empty((size, *shape[1:]), device="cuda")
            out = compiled(x, parameters)
            assert (out[0] if isinstance(out, tuple) else out).shape == x.shape
    assert asked == [("cuda", 0)]
    ours = [str(n.target) for graph in graphs for n in graph.graph.nodes if "normkit" in str(n.target)]
    assert ours == [operator]


def test_explain_names_triton_and_says_why_not(ready):
    with FakeTensorMode():
        x = torch.empty(2, 8, device="cuda")
        wide = torch.empty(2, 8, device="cuda", dtype=torch.float64)
    assert nk.kernels.choices(x)["layer_norm"][0] == "triton"
    backend, why = nk.kernels.choices(wide)["layer_norm"]
    assert backend == "aten"
    assert "triton: it has no kernels for torch.float64" in why


def test_a_gpu_that_is_not_here_gets_torchs_operators():
    with FakeTensorMode():
        x = torch.empty(2, 8, device="cuda")
    backend, why = nk.kernels.choices(x)["layer_norm"]
    assert backend == "aten"
    assert "triton: " in why


def test_a_device_that_fails_its_check_gets_torchs_operators_and_one_line_says_so(monkeypatch):
    monkeypatch.setitem(readiness._STATE, ("cuda", 0), "its check failed on this device: rows are off by 1")
    monkeypatch.setattr(nk.kernels, "_SAID", set())
    with FakeTensorMode():
        x = torch.empty(2, 8, device="cuda")
        with pytest.warns(RuntimeWarning, match="its check failed on this device"):
            F.layer_norm(x, (8,))
        F.layer_norm(x, (8,))  # once is enough: another warning would be an error


def test_what_passed_is_kept_in_a_file_and_what_failed_is_not(tmp_path, monkeypatch):
    selfcheck = pytest.importorskip("normkit.kernels.triton.selfcheck", reason="Triton is missing")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(readiness, "_describe", lambda device: "a GPU")
    runs = []

    def check(device):
        runs.append(device)
        return "off" if len(runs) == 1 else ""

    monkeypatch.setattr(selfcheck, "run", check)
    device = torch.device("cuda", 0)
    assert readiness._checked(device, "3.7") == "off"
    assert not readiness.cache_file().exists()
    assert readiness._checked(device, "3.7") == ""
    assert readiness._checked(device, "3.7") == ""
    assert len(runs) == 2
    assert readiness._checked(device, "3.9") == ""  # another version is another machine
    assert len(json.loads(readiness.cache_file().read_text())) == 2
    readiness.cache_file().write_text("{")
    assert readiness._checked(device, "3.7") == ""
    assert len(runs) == 4


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    selfcheck = pytest.importorskip("normkit.kernels.triton.selfcheck", reason="Triton is missing")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(readiness, "_describe", lambda device: "a GPU")
    monkeypatch.setattr(selfcheck, "run", lambda device: "")
    assert readiness._checked(torch.device("cuda", 0), "3.7") == ""


def test_a_backend_that_is_asked_for_computes_or_raises():
    x = torch.randn(2, 8)
    with nk.backend("reference"):
        assert (
            admission.admit("rms_norm", x, {"axes": (1,), "weight": None, "eps": 1e-5}).backend == "reference"
        )
        y = F.layer_norm(x, (8,))
    torch.testing.assert_close(y, F.layer_norm(x, (8,)))
    with nk.backend("aten"):
        torch.testing.assert_close(F.layer_norm(x, (8,)), y)
        with pytest.raises(
            NormkitError, match="'aten' was asked for, and does not take this group_norm: torch has"
        ):
            F.group_norm(x[..., None].expand(2, 8, 3), 2, mask=torch.ones(2, 3, dtype=torch.bool))
    with nk.backend("triton"), pytest.raises(NormkitError, match="'triton' was asked for"):
        F.layer_norm(x, (8,))
    with nk.backend("triton"):
        said = nk.kernels.explain(x)
    assert "layer_norm      none       an error; triton is asked for: it computes on GPUs" in said
    with pytest.raises(NormkitError, match="did you mean 'triton'"), nk.backend("tritn"):
        pass
    assert not admission.FORCED


def test_a_backend_is_asked_for_in_this_thread_alone():
    import threading

    found = []
    x = torch.randn(2, 8)

    def other():
        call = {"axes": (1,), "weight": None, "bias": None, "eps": 1e-5}
        for own in (x, x.as_subclass(type("Own", (torch.Tensor,), {}))):
            found.append(admission.admit("layer_norm", own, call).backend)

    with nk.backend("aten"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert found == ["cpu", "reference"]
