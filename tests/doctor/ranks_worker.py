"""Runs under torchrun with two gloo processes on the CPU: one function a claim, checked on every rank.

test_ranks.py passes the names of the functions.
"""

import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import normkit as nk


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        return x + self.net(self.norm(x))


def network():
    torch.manual_seed(1)
    stem = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8))
    return nn.Sequential(stem, Block(), Block(), nn.LayerNorm(8), nn.Linear(8, 1))


def my_batch(rows=64):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(10 + dist.get_rank()))


def differing(report):
    return [finding for finding in report.findings if finding.code == "NK707"]


def state(model):
    """Copies of all tensors, as this process has them, and of what kind they are."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return {
        n: (type(t), t.to_local().clone() if isinstance(t, DTensor) else t.detach().clone())
        for n, t in tensors.items()
    }


def assert_same(before, after):
    assert list(before) == list(after)
    for name, (kind, value) in before.items():
        assert after[name][0] is kind, name
        assert torch.equal(after[name][1], value), name


def assert_same_everywhere(tensor):
    both = [torch.empty_like(tensor) for _ in range(2)]
    dist.all_gather(both, tensor.detach())
    assert torch.equal(*both)


def equal_ranks_give_nothing():
    for batch in (my_batch(), my_batch(32 + 8 * dist.get_rank())):
        assert differing(nk.doctor(network(), batch)) == []


def gains_that_differ_are_found_with_the_number():
    model = network()
    with torch.no_grad():
        model[1].norm.weight[3] += 0.25 * dist.get_rank()
    (finding,) = differing(nk.doctor(model, my_batch()))
    assert (finding.severity, finding.where) == ("error", "1.norm.weight")
    assert finding.measured == 0.25
    assert finding.line.startswith(__file__), finding.line


def running_statistics_that_drifted_apart_are_found_and_mended():
    """DDP that does not broadcast buffers: each process has the statistics of its own data."""
    model = network()
    wrapped = DistributedDataParallel(model)
    wrapped.broadcast_buffers = False  # as its argument, which is being renamed
    wrapped(my_batch()).sum().backward()
    before = state(model)
    report = nk.doctor(wrapped, my_batch())
    assert_same(before, state(model))
    found = {f.where: f.severity for f in differing(report)}
    assert found == {"0.1.running_mean": "error", "0.1.running_var": "error"}
    edits = report.fix()
    for name in ("running_mean", "running_var"):
        assert_same_everywhere(getattr(model[0][1], name))
        if dist.get_rank() == 0:
            assert torch.equal(getattr(model[0][1], name), before[f"0.1.{name}"][1])
    assert differing(nk.doctor(wrapped, my_batch())) == []
    edits.undo()
    assert_same(before, state(model))
    assert len(differing(nk.doctor(wrapped, my_batch()))) == 2


def norms_that_one_process_does_not_call_are_left_out():
    """A branch that depends on data. The others are still compared, each with its own."""

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.LayerNorm(4), nn.LayerNorm(6), nn.LayerNorm(4)

        def forward(self, x):
            if dist.get_rank() == 0:
                x = self.first(x)
            else:
                x = nn.functional.pad(self.second(nn.functional.pad(x, (0, 2))), (0, -2))
            return self.last(x)

    model = Branching()
    with torch.no_grad():
        model.last.bias += dist.get_rank()
    report = nk.doctor(model, my_batch())
    assert [f.where for f in differing(report)] == ["last.bias"]


def running_statistics_that_ddp_broadcasts_are_no_finding_and_others_are_by_their_mode():
    """Between two forwards they differ, as they are meant to: before each, all get the first process's."""
    model = network()
    wrapped = DistributedDataParallel(model)
    wrapped(my_batch()).sum().backward()
    for given in (wrapped, torch.compile(wrapped, backend="eager"), wrapped.eval(), wrapped.train()):
        assert differing(nk.doctor(given, my_batch())) == []
    for mode, severity in ((True, "info"), (False, "error")):
        found = differing(nk.doctor(model.train(mode), my_batch()))
        assert [f.severity for f in found] == [severity] * 2, found


def a_model_under_ddp_is_inspected_and_unchanged():
    wrapped = DistributedDataParallel(network())
    wrapped(my_batch()).square().mean().backward()
    before = state(wrapped.module)
    grads = [p.grad.clone() for p in wrapped.parameters()]
    found = nk.inspect(wrapped, my_batch())
    assert [site.path for site in found] == ["0.1", "1.norm", "2.norm", "3"]
    report = nk.doctor(wrapped, my_batch(), loss=lambda y: y.mean())
    assert differing(report) == []
    assert_same(before, state(wrapped.module))
    assert all(torch.equal(p.grad, g) for p, g in zip(wrapped.parameters(), grads, strict=True))
    train(wrapped)


def sharded():
    model = network()
    mesh = init_device_mesh("cpu", (2,))
    for part in model[:3]:
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model, doctor=None, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = model(my_batch()).square().mean()
        loss.backward()
        if doctor is not None:
            assert doctor.step() is not None
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def a_model_under_fsdp2_is_inspected_and_unchanged():
    expected = train(sharded())
    for look in (nk.inspect, nk.doctor):
        model = sharded()
        before = state(model)
        assert issubclass(before["1.norm.weight"][0], DTensor)
        found = look(model, my_batch())
        assert len(getattr(found, "inspection", found)) == 4
        assert_same(before, state(model))
        assert train(model) == expected


def gains_of_zero_in_shards_are_dead_only_if_their_gradient_is_zero():
    for is_dead in (False, True):
        model = sharded()
        zeros = [model[1].norm.weight, *([model[1].net[0].weight] if is_dead else [])]  # it passes nothing on
        with nk.Doctor(model, every=1, select="NK502", out=lambda line: None) as doctor:
            for _ in range(3):
                with torch.no_grad():
                    for parameter in zeros:
                        parameter.zero_()
                assert nk.doctor(model, my_batch(), select="NK502", loss=lambda y: y.mean()).ok
                train(model, doctor, steps=1)
        assert [f.where for f in doctor.findings] == (["1.norm"] if is_dead else []), doctor.findings


def the_doctor_of_a_loop_watches_ddp_and_fsdp2():
    for build in (lambda: DistributedDataParallel(network()), sharded):
        expected = train(build())
        model, lines = build(), []
        with nk.Doctor(model, every=1, out=lines.append) as doctor:
            assert train(model, doctor) == expected
        assert doctor.report.ok
        if build is sharded:  # nobody broadcasts its buffers
            lines = [line for line in lines if "info NK707 ranks-differ at 0.1.running_" not in line]
        assert lines == [], lines


def only_the_first_process_speaks():
    lines = []
    model = network()
    model[3].eps = 0.5
    doctor = nk.Doctor(model, select="NK204", out=lines.append)
    model(my_batch()).sum().backward()
    doctor.step()
    assert len(doctor.findings) == 1
    assert len(lines) == (1 if dist.get_rank() == 0 else 0), lines


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    assert dist.get_world_size() == 2
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        try:
            globals()[name]()
        except Exception:
            traceback.print_exc()
            break  # the other rank may wait for this one: nothing after it can be trusted
        dist.barrier()
        print(f"rank {dist.get_rank()}: {name} holds", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
