"""The Triton kernels, interpreted, inside what torch does with operators. Run with --triton.

A CPU build of torch records no graph on a fake GPU. Here the operators of the CPU are the Triton ones.
"""

import warnings

import pytest
import torch
import torch._dynamo.testing
import torch._functorch.config
import torch._inductor.config
from operator_calls import calls
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import normkit as nk
from normkit.kernels import operators
from normkit.kernels.by_reference import STATISTICS
from normkit.kernels.operators import raw
from normkit.kernels.triton import HOMES, IMPLEMENTATIONS
from normkit.kernels.triton.versions import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="these run with --triton alone")
CALLS = {name: found for name, found in calls(torch.ones(STATISTICS, 6)).items() if name in HOMES}


@pytest.fixture
def seen(monkeypatch):
    """The operators whose Triton kernels ran, which are the CPU's as long as this lasts."""
    names = []

    def noting(name):
        def call(*arguments):
            names.append(name)
            return IMPLEMENTATIONS[name](*arguments)

        return call

    library = torch.library.Library("normkit", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that another kernel was there is meant
        for name in HOMES:
            library.impl(name, noting(name), "CPU", allow_override=True)
    raw.cache_clear()
    kept = lambda x, k0, r1, k2, *call: x.new_empty((STATISTICS, k0 * k2), dtype=torch.float32)  # noqa: E731
    monkeypatch.setattr(operators, "_group_stats", kept)  # as on a GPU
    yield names
    library._destroy()
    raw.cache_clear()


EACH = [(name, number) for name, found in CALLS.items() for number in range(len(found))]


def on_a_gpu(tensor):
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")


def is_theirs(call):
    return not any(isinstance(t, torch.Tensor) and t.dtype == torch.float64 for t in call)


@pytest.mark.parametrize(("name", "number"), [e for e in EACH if is_theirs(CALLS[e[0]][e[1]])])
def test_torchs_own_checks_pass_and_a_fake_gpus_results_look_like_real_ones(name, number, seen):
    call, operator = CALLS[name][number], getattr(torch.ops.normkit, name).default
    fake_of_a_cpu = {"test_utils": ("test_schema", "test_autograd_registration")}
    torch.library.opcheck(operator, call, **(fake_of_a_cpu if name == "groups_out" else {}))
    assert name in seen
    real = operator(*call)
    with FakeTensorMode():
        fake = operator(*(on_a_gpu(a) if isinstance(a, torch.Tensor) else a for a in call))
    for r, f in zip(
        *(found if isinstance(found, tuple) else (found,) for found in (real, fake)), strict=True
    ):
        assert f is r is None or (r.shape, r.dtype, r.stride()) == (f.shape, f.dtype, f.stride())


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nk.BatchNorm1d(6), nn.Linear(6, 8), nk.LayerNorm(8), nn.Tanh(), nk.RMSNorm(8), nk.GroupNorm(2, 8)
    )


def trained(wrap, sizes=(5, 7)):
    """Parameters and running statistics after some steps on batches of these sizes."""
    own = model()
    run, step = wrap(own), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(run.parameters(), lr=0.1)
    for size in sizes:
        loss = run(torch.randn(size, 6, generator=step)).cos().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [t.detach().clone() for t in (*run.parameters(), *run.buffers())]


def assert_same(found, true):
    for a, b in zip(found, true, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


NAMES = {"rows_train", "rows_backward", "groups", "groups_backward", "update_running"}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_model_is_one_graph_for_every_size_and_trains_as_an_eager_one(backend, seen):
    true = trained(lambda own: own)
    del seen[:]
    torch._dynamo.reset()
    graphs = torch._dynamo.testing.CompileCounterWithBackend(backend)
    # Graphs of the same operators on the CPU may be cached.
    inductor, functorch = torch._inductor.config, torch._functorch.config
    with inductor.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
        found = trained(lambda own: torch.compile(own, fullgraph=True, dynamic=True, backend=graphs))
    assert sum(len(g.graph.nodes) > 0 for g in graphs.graphs) == 1
    assert set(seen) == NAMES
    assert_same(found, true)


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def fully_sharded(own):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(own, mesh=torch.distributed.init_device_mesh("cpu", (1,)))


@pytest.mark.parametrize("wrap", [nn.parallel.DistributedDataParallel, fully_sharded], ids=["ddp", "fsdp2"])
def test_a_wrapped_model_trains_as_one_that_is_not(wrap, process_group, seen):
    true = trained(lambda own: own)
    found = trained(wrap)
    assert_same([t.full_tensor() if hasattr(t, "full_tensor") else t for t in found], true)
