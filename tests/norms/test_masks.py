"""Padding never enters a statistic: whatever it holds, and however much of it there is."""

import math

import pytest
import torch
from family import FAMILY, POWER, call

import normkit as nk

MASKED = [c for c in FAMILY + POWER if c.mask_shape is not None]
over_masked = pytest.mark.parametrize("case", MASKED, ids=lambda c: c.name)


def random_mask(shape, seed=0):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.4
    mask.view(-1)[0] = True
    return mask


def full_mask(case, mask):
    """The mask of each number of the input, whichever axis the channels are on."""
    if mask.ndim == len(case.shape):
        return mask
    axis = next(
        i for i in range(len(case.shape)) if case.shape[:i] + case.shape[i + 1 :] == case.mask_shape and i
    )
    return mask.unsqueeze(axis).expand(case.shape)


def run(case, inputs, mask):
    layer = case.layer()
    tensors = {k: v.clone().requires_grad_() for k, v in inputs.items()}
    y = call(layer, tensors, mask=mask)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
    (y * weights).sum().backward()  # the loss looks at padding too: no gradient may come from there
    grads = {k: t.grad for k, t in (*tensors.items(), *layer.named_parameters())}
    return y.detach(), grads, {k: v.clone() for k, v in layer.named_buffers()}


@over_masked
@pytest.mark.parametrize("padding", [math.nan, math.inf, -1e30, 7.0])
def test_what_padding_holds_changes_nothing(case, padding):
    inputs, mask = case.inputs(), random_mask(case.mask_shape)
    real = full_mask(case, mask)
    changed = {**inputs, "x": torch.where(real, inputs["x"], padding)}
    y, grads, buffers = run(case, inputs, mask)
    y2, grads2, buffers2 = run(case, changed, mask)
    assert torch.equal(y, y2)
    assert all(torch.equal(grads[k], grads2[k]) for k in grads)
    assert all(torch.equal(buffers[k], buffers2[k]) for k in buffers)
    assert y.isfinite().all()
    assert not y[~real].any(), "padding comes out as 0"
    assert not grads["x"][~real].any(), "padding gets no gradient"


@over_masked
def test_a_mask_of_true_is_no_mask(case):
    inputs = case.inputs()
    y, grads, buffers = run(case, inputs, torch.ones(case.mask_shape, dtype=torch.bool))
    y2, grads2, buffers2 = run(case, inputs, None)
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(y, y2, **close)
    torch.testing.assert_close(grads, grads2, **close)
    torch.testing.assert_close(buffers, buffers2, **close)


LENGTHS = [5, 3, 1]
SEQUENCES = {  # layers on (batch, length, features)
    "BatchNorm": lambda: nk.BatchNorm1d(4, axis=-1),
    "SyncBatchNorm": lambda: nk.SyncBatchNorm(4, axis=-1),
    "BatchNorm-average": lambda: nk.BatchNorm1d(4, axis=-1, momentum=None),
    "InstanceNorm": lambda: nk.InstanceNorm1d(4, axis=-1, affine=True, track_running_stats=True),
    "GroupNorm": lambda: nk.GroupNorm(2, 4, axis=-1),
    "Norm-batch": lambda: nk.Norm("[b l] d", d=4),
    "Norm-sample": lambda: nk.Norm("b [l] d", d=4, center=False),
    "PowerNorm": lambda: nk.PowerNorm(4),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_how_much_padding_there_is_changes_nothing(name):
    torch.manual_seed(0)
    sequences = [torch.randn(n, 4, dtype=torch.float64) for n in LENGTHS]
    weights = [torch.randn(n, 4, dtype=torch.float64) for n in LENGTHS]
    results = []
    for length in (5, 6, 40):
        layer = SEQUENCES[name]().double()
        x = torch.full(
            (len(LENGTHS) + (length == 40), length, 4), math.nan, dtype=torch.float64
        )  # one row of padding
        mask = torch.zeros(x.shape[:2], dtype=torch.bool)
        for row, sequence in enumerate(sequences):
            x[row, : len(sequence)] = sequence
            mask[row, : len(sequence)] = True
        x.requires_grad_()
        for _ in range(2):
            y = layer(x, mask=mask)
        sum((y[i, : len(w)] * w).sum() for i, w in enumerate(weights)).backward()
        parts = [t[i, :n] for t in (y.detach(), x.grad) for i, n in enumerate(LENGTHS)]
        results.append([*parts, *(p.grad for p in layer.parameters()), *layer.buffers()])
    for longer in results[1:]:
        torch.testing.assert_close(longer, results[0], rtol=1e-12, atol=1e-12)


def test_masked_batch_norm_is_batch_norm_of_the_packed_tokens():
    torch.manual_seed(0)
    x, mask = torch.randn(4, 7, 5, dtype=torch.float64), random_mask((4, 7))
    ours, theirs = nk.BatchNorm1d(5, axis=-1).double(), torch.nn.BatchNorm1d(5).double()
    torch.testing.assert_close(ours(x, mask=mask)[mask], theirs(x[mask]))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_masked_instance_norm_is_instance_norm_of_each_packed_sample():
    torch.manual_seed(0)
    x, mask = torch.randn(3, 5, 9, dtype=torch.float64), random_mask((3, 9))
    y = nk.InstanceNorm1d(5)(x, mask=mask)
    for row in range(3):
        expected = torch.nn.InstanceNorm1d(5)(x[row][:, mask[row]])
        torch.testing.assert_close(y[row][:, mask[row]], expected)


def test_a_mask_broadcasts_or_leaves_out_the_channels():
    x = torch.randn(2, 6, 4, 5)
    rows = torch.tensor([True, True, False, True])
    layer = nk.GroupNorm(3, 6)
    short = layer(x, mask=rows.reshape(1, 4, 1).expand(2, 4, 5))
    assert torch.equal(short, layer(x, mask=rows.reshape(1, 1, 4, 1)))
    assert torch.equal(short, layer(x, mask=rows.reshape(1, 4, 1)))
    each = torch.rand(x.shape) > 0.5  # a mask of its own for every channel
    assert not layer(x, mask=each)[~each].any()


def test_a_mask_means_the_same_with_and_without_parameters():
    x, rows = torch.randn(2, 4, 4, 4), torch.ones(2, 4, 4, dtype=torch.bool)  # sizes that fit any axis
    rows[:, 3] = False
    expected = nk.InstanceNorm2d(4)(x, mask=rows)
    torch.testing.assert_close(nk.Norm("n c [h w]", c=4)(x, mask=rows), expected, rtol=1e-6, atol=1e-6)
    plain = nk.Norm("n c [h w]", affine=False)
    torch.testing.assert_close(plain(x, mask=rows[:, None]), expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(nk.NormkitError, match="broadcasts against the input"):
        plain(x, mask=rows)  # nothing says which axis it leaves out


def test_a_batch_of_padding_alone_leaves_running_statistics_alone():
    for layer in (
        nk.BatchNorm1d(3, axis=-1),
        nk.InstanceNorm1d(3, axis=-1, track_running_stats=True),
        nk.PowerNorm(3),
    ):
        layer(torch.randn(2, 4, 3))
        before = {k: v.clone() for k, v in layer.state_dict().items() if "running" in k}
        y = layer(torch.randn(2, 4, 3), mask=torch.zeros(2, 4, dtype=torch.bool))
        assert not y.any()
        assert all(torch.equal(layer.state_dict()[k], v) for k, v in before.items())


def test_the_plain_average_does_not_count_a_batch_of_padding():
    layer, x = nk.BatchNorm1d(3, momentum=None), torch.randn(4, 3) + 10
    layer(x, mask=torch.zeros(4, dtype=torch.bool))
    layer(x)
    torch.testing.assert_close(layer.running_mean, x.mean(0))
    assert layer.num_batches_tracked == 1


def test_a_single_valid_value_moves_the_running_mean_and_not_the_variance():
    x, mask = torch.randn(4, 3) + 10, torch.tensor([True, False, False, False])
    layer = nk.BatchNorm1d(3, momentum=1.0)
    layer(x, mask=mask)
    torch.testing.assert_close(layer.running_mean, x[0])
    assert layer.running_var.eq(1).all()
    sample = torch.randn(2, 3, 5)
    lengths = torch.arange(5) < torch.tensor([[5], [1]])
    instance = nk.InstanceNorm1d(3, track_running_stats=True, momentum=1.0)
    instance(sample, mask=lengths)
    torch.testing.assert_close(instance.running_mean, (sample[0].mean(-1) + sample[1, :, 0]) / 2)
    torch.testing.assert_close(instance.running_var, sample[0].var(-1))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(2, 4), "torch.bool"),
        (torch.ones(2, 4, dtype=torch.int64), "mask.bool()"),
        ([[True]], "list"),
        (torch.ones(2, 5, dtype=torch.bool), "shape (2, 4), or one that broadcasts"),
        (torch.ones(4, dtype=torch.bool), "shape (2, 4), or one that broadcasts"),
    ],
)
def test_a_wrong_mask_is_refused(mask, words):
    for layer in (nk.BatchNorm1d(3, axis=-1), nk.GroupNorm(3, 3, axis=-1), nk.Norm("[b l] d", d=3)):
        with pytest.raises(nk.NormkitError) as error:
            layer(torch.randn(2, 4, 3), mask=mask)
        assert words in str(error.value)
