"""Runs under torchrun with two gloo processes on the CPU: one function a claim, checked on every rank.

test_two_processes.py passes the names of the functions.
"""

import copy
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import normkit as nk
from normkit.kernels.moments import moments

CLOSE = {"rtol": 1e-10, "atol": 1e-12}  # float64: only the order of summation differs


def whole_batch(shape, sizes):
    """The same data on every rank, and this rank's slice of it: rank 0 has sizes[0] rows, and so on."""
    x = torch.randn(sum(sizes), *shape, dtype=torch.float64) * 3 + 100
    weights = torch.randn_like(x)
    start = sum(sizes[: dist.get_rank()])
    return x, weights, slice(start, start + sizes[dist.get_rank()])


def same_as_one_process(sync, single, x, weights, mine, mask=None):
    """Outputs, input gradients, summed parameter gradients and running statistics."""
    whole_x, part_x = x.clone().requires_grad_(), x[mine].clone().requires_grad_()
    masks = {} if mask is None else {"mask": mask}
    part_masks = {} if mask is None else {"mask": mask[mine]}
    for _ in range(2):  # twice: running statistics move on
        whole, part = single(whole_x, **masks), sync(part_x, **part_masks)
    torch.testing.assert_close(part, whole[mine], **CLOSE)
    whole_x.grad = part_x.grad = None
    (whole * weights).sum().backward()
    (part * weights[mine]).sum().backward()
    torch.testing.assert_close(part_x.grad, whole_x.grad[mine], **CLOSE)
    for ours, theirs in zip(sync.parameters(), single.parameters(), strict=True):
        dist.all_reduce(ours.grad)
        torch.testing.assert_close(ours.grad, theirs.grad, **CLOSE)
    for ours, theirs in zip(sync.buffers(), single.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def sync_batch_norm_equals_one_process():
    for sizes in ((4, 4), (5, 2), (6, 1), (7, 0)):
        for momentum in (0.1, None):
            x, weights, mine = whole_batch((3, 4, 2), sizes)
            settings = {"dtype": torch.float64, "momentum": momentum}
            sync, single = nk.SyncBatchNorm(3, **settings), nk.BatchNorm2d(3, **settings)
            same_as_one_process(sync, single, x, weights, mine)


def sync_batch_norm_equals_torch_on_the_whole_batch():
    x, weights, mine = whole_batch((3, 4, 2), (5, 2))
    sync, single = nk.SyncBatchNorm(3, dtype=torch.float64), nn.BatchNorm2d(3, dtype=torch.float64)
    same_as_one_process(sync, single, x, weights, mine)


def sync_batch_norm_takes_one_sample_a_rank():
    x, weights, mine = whole_batch((3,), (1, 1))
    same_as_one_process(
        nk.SyncBatchNorm(3, dtype=torch.float64), nk.BatchNorm1d(3, dtype=torch.float64), x, weights, mine
    )


def sync_batch_norm_is_exact_in_float32_for_large_means_and_magnitudes():
    for mean, spread in ((1e6, 1.0), (0.0, 3e37), (1e30, 1e29)):
        x, weights, mine = whole_batch((3, 40), (5, 2))
        x = (torch.randn(x.shape, generator=torch.Generator().manual_seed(0)) * spread + mean).float()
        sync, single = nk.SyncBatchNorm(3, affine=False), nk.BatchNorm1d(3, affine=False).double()
        part, whole = x[mine].clone().requires_grad_(), x.double().requires_grad_()
        y, expected = sync(part), single(whole)
        assert y.dtype == torch.float32
        assert (y - expected[mine]).abs().max() < 1e-5
        (y * weights[mine].float()).sum().backward()
        (expected * weights.float().double()).sum().backward()
        assert (part.grad - whole.grad[mine]).abs().max() < 1e-5 * whole.grad.abs().max()


def sync_batch_norm_computes_in_the_dtype_of_its_input():
    seen = moments(torch.randn(4, 3), [0], group=dist.group.WORLD)
    assert {t.dtype for t in (seen.centered, seen.var, seen.mean, seen.scale)} == {torch.float32}


def sync_batch_norm_does_not_count_a_batch_of_padding():
    x, _, mine = whole_batch((3,), (4, 2))
    layer = nk.SyncBatchNorm(3, dtype=torch.float64, momentum=None)
    layer(x[mine], mask=torch.zeros(len(x[mine]), dtype=torch.bool))
    layer(x[mine], mask=torch.full((len(x[mine]),), dist.get_rank() == 0))  # real on one rank alone
    assert layer.num_batches_tracked == 1
    torch.testing.assert_close(layer.running_mean, x[:4].mean(0), **CLOSE)


def sync_batch_norm_does_not_synchronise_in_evaluation():
    layer = nk.SyncBatchNorm(3, track_running_stats=False).eval()
    if dist.get_rank() == 0:  # the other rank does not take part: a collective would hang
        x = torch.randn(5, 3)
        torch.testing.assert_close(layer(x), nk.BatchNorm1d(3)(x))


def a_converted_model_keeps_its_process_group():
    group = dist.new_group([0, 1])
    model = nk.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(3)), group)
    assert model[0].process_group is group
    assert model[0]._sync_group() is group


class WithActivation(nn.BatchNorm2d):
    """A class derived from BatchNorm that calls torch's function itself, as timm's do."""

    def forward(self, x):
        training = self.training or self.running_mean is None
        y = nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training, self.momentum, self.eps
        )
        return y.tanh()


def surgery_synchronises_a_derived_class_and_keeps_what_it_does():
    x, weights, mine = whole_batch((3, 4, 2), (5, 2))
    single = nn.Sequential(WithActivation(3)).double()
    sync = copy.deepcopy(single)
    certificate = nk.surgery.bn_to_sync(sync, x[mine])
    same_as_one_process(sync, single, x, weights, mine)
    certificate.undo()
    assert type(sync[0]) is WithActivation


def sync_batch_norm_takes_a_mask_on_each_rank():
    for sizes in ((4, 4), (5, 2)):
        x, weights, mine = whole_batch((7, 3), sizes)
        mask = torch.rand(x.shape[:2]) > 0.4
        x[~mask] = float("nan")
        settings = {"dtype": torch.float64, "axis": -1}
        sync, single = nk.SyncBatchNorm(3, **settings), nk.BatchNorm1d(3, **settings)
        same_as_one_process(sync, single, x, weights, mine, mask)


def sync_batch_norm_takes_a_rank_of_padding_alone():
    x, weights, mine = whole_batch((7, 3), (3, 2))
    mask = torch.ones(x.shape[:2], dtype=torch.bool)
    mask[3:] = False
    settings = {"dtype": torch.float64, "axis": -1}
    sync, single = nk.SyncBatchNorm(3, **settings), nk.BatchNorm1d(3, **settings)
    same_as_one_process(sync, single, x, weights, mine, mask)


def sync_batch_norm_is_twice_differentiable():
    x, weights, mine = whole_batch((3,), (4, 3))
    grads = []
    for norm, rows in (
        (nk.SyncBatchNorm(3, dtype=torch.float64), mine),
        (nk.BatchNorm1d(3, dtype=torch.float64), slice(None)),
    ):
        part = x[rows].clone().requires_grad_()
        (grad,) = torch.autograd.grad((norm(part) * weights[rows]).sum(), part, create_graph=True)
        (grad * weights[rows].cos()).sum().backward()
        grads.append(part.grad)
    torch.testing.assert_close(grads[0], grads[1][mine], **CLOSE)


def sync_batch_norm_compiles():
    x, weights, mine = whole_batch((3, 5), (5, 2))
    sync, single = nk.SyncBatchNorm(3, dtype=torch.float64), nk.BatchNorm1d(3, dtype=torch.float64)
    same_as_one_process(torch.compile(sync, fullgraph=True), single, x, weights, mine)


def sync_batch_norm_of_a_subgroup_ignores_the_others():
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    x, _, mine = whole_batch((3,), (4, 4))
    own = nk.SyncBatchNorm(3, dtype=torch.float64, process_group=groups[dist.get_rank()])
    torch.testing.assert_close(own(x[mine]), nk.BatchNorm1d(3, dtype=torch.float64)(x[mine]), **CLOSE)


def network(kind=nk.BatchNorm1d):
    torch.manual_seed(1)
    parts = [nn.Linear(6, 6), kind(6), nn.Linear(6, 6), nk.LayerNorm(6), nn.Linear(6, 4), nk.RMSNorm(4)]
    return nn.Sequential(*parts).double()


def train(model, x, weights, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x) * weights).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def halves():
    torch.manual_seed(2)
    x, weights = torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 4, dtype=torch.float64)
    mine = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    return x, weights, mine


def ddp_trains_like_one_process():
    x, weights, mine = halves()
    single = network()
    expected = train(single, x, weights)
    model = nk.SyncBatchNorm.convert_sync_batchnorm(network())
    losses = train(DistributedDataParallel(model), x[mine], weights[mine])
    dist.all_reduce(losses)
    torch.testing.assert_close(losses / 2, expected, **CLOSE)
    for ours, theirs in zip(model.state_dict().values(), single.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def fsdp2_trains_like_one_process():
    x, weights, mine = halves()
    expected = train(network(), x, weights)
    model = nk.SyncBatchNorm.convert_sync_batchnorm(network())
    for part in model:
        fully_shard(part, mesh=init_device_mesh("cpu", (2,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    assert isinstance(model[1].weight, DTensor)
    losses = train(model, x[mine], weights[mine])
    dist.all_reduce(losses)
    torch.testing.assert_close(losses / 2, expected, **CLOSE)


def language_model(placement):
    torch.manual_seed(5)
    sizes = {"vocab": 30, "dim": 16, "depth": 3, "heads": 2, "context": 16}
    return nk.LanguageModel(**sizes, placement=placement, norm="rms").double()


def train_on_text(model, ids):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        logits = model(ids)[:, :-1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def same_training(wrap):
    ids = torch.randint(30, (4, 12), generator=torch.Generator().manual_seed(1))
    mine = ids[2 * dist.get_rank() :][:2]
    for placement in ("pre", "deepnorm", "dual", "layerscale"):
        expected = train_on_text(language_model(placement), ids)
        losses = train_on_text(wrap(language_model(placement)), mine)
        dist.all_reduce(losses)
        torch.testing.assert_close(losses / 2, expected, **CLOSE)


def a_language_model_trains_with_ddp():
    same_training(DistributedDataParallel)


def a_language_model_trains_with_fsdp2():
    def wrap(model):
        mesh = init_device_mesh("cpu", (2,))
        for block in model.stack.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    same_training(wrap)


def same_when_sharded(layer, shape, dim):
    """Output, gradients and buffers of a layer on a DTensor, against the layer on the whole tensor."""
    layer = layer.double()
    for parameter in layer.parameters():
        nn.init.uniform_(parameter)
    x, weights = torch.randn(2, *shape, dtype=torch.float64)
    mesh = init_device_mesh("cpu", (2,))
    sharded = distribute_module(copy.deepcopy(layer), mesh)
    whole, part = x.clone().requires_grad_(), distribute_tensor(x, mesh, [Shard(dim)]).requires_grad_()
    expected, y = layer(whole), sharded(part)
    assert y.placements == (Shard(dim),), y.placements
    torch.testing.assert_close(y.full_tensor(), expected, **CLOSE)
    (expected * weights).sum().backward()
    (y * distribute_tensor(weights, mesh, [Shard(dim)])).sum().backward()
    torch.testing.assert_close(part.grad.full_tensor(), whole.grad, **CLOSE)
    for ours, theirs in zip(sharded.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad, **CLOSE)
    for ours, theirs in zip(sharded.buffers(), layer.buffers(), strict=True):
        torch.testing.assert_close(ours.full_tensor(), theirs, **CLOSE)


def dtensor_shards_batch_and_sequence():
    layers = [
        *(nk.LayerNorm(6), nk.RMSNorm(6), nk.RMSNorm(6, zero_centered_weight=True), nk.Norm("b l [d]", d=6)),
        *(nk.ScaleNorm(6), nk.DyT(6), nk.BatchNorm1d(6, axis=-1), nk.GroupNorm(3, 6, axis=-1)),
    ]
    for layer in layers:
        for dim in (0, 1):
            same_when_sharded(copy.deepcopy(layer), (4, 8, 6), dim)


def dtensor_shards_the_batch_of_images():
    layers = [
        *(nk.GroupNorm(3, 6), nk.InstanceNorm2d(6, affine=True), nk.BatchNorm2d(6), nk.BatchNorm2d(6).eval()),
        *(nk.LayerNorm(6, axis=1), nk.Norm("n (g [c]) [h w]", g=3, c=2)),
    ]
    for layer in layers:
        same_when_sharded(layer, (4, 6, 5, 2), 0)


def sequence_parallel_style_takes_our_layers():
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(nk.LayerNorm(6), nk.RMSNorm(6)).double()
    x = torch.randn(2, 8, 6, dtype=torch.float64)
    expected = model(x)
    parallelize_module(model, mesh, {"0": SequenceParallel(), "1": SequenceParallel()})
    y = model(distribute_tensor(x, mesh, [Shard(1)]))
    y = y.full_tensor() if isinstance(y, DTensor) else y
    torch.testing.assert_close(y, expected, **CLOSE)


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
