"""An outlier where the kernels begin to look costs no digits, with a mask or without."""

import pytest
import torch
import torch.nn.functional as T

import normkit as nk
from normkit import functional as F

EXACT = 1e-5  # the promise, for outputs of the order of 1


def error(got, truth):
    return ((got.double() - truth).abs() / truth.abs().clamp_min(1)).max().item()


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 40])
@pytest.mark.parametrize("size", [10.0, 1000.0, 1e5])
def test_channels_that_begin_with_outliers(size, rows):
    torch.manual_seed(0)
    x = torch.randn(2, 64, 9, 33)
    x[:, :rows] += size
    truth = T.layer_norm(x.double().movedim(1, -1), (64,)).movedim(-1, 1)
    assert error(nk.LayerNorm(64, axis=1)(x), truth) < EXACT / 4


@pytest.mark.parametrize("tokens", [1, 8, 64, 100])
@pytest.mark.parametrize("size", [100.0, 1e4])
def test_batches_that_begin_with_outliers(size, tokens):
    torch.manual_seed(0)
    x = torch.randn(4, 300, 24)
    x[0, :tokens] += size
    truth = T.batch_norm(x.double().flatten(0, 1), None, None, training=True).view(x.shape)
    assert error(nk.BatchNorm1d(24, axis=-1)(x), truth) < EXACT / 4


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("side", [3, 7, 14, 40])
def test_images_that_begin_with_outliers(side, channels_last):
    torch.manual_seed(0)
    x = torch.randn(3, 12, side, side)
    x[:, :, 0] += 1e4
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    for norm in (lambda f, v: f.instance_norm(v), lambda f, v: f.group_norm(v, 3)):
        assert error(norm(F, x), norm(T, x.double().contiguous())) < EXACT / 4


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("side", [5, 14, 40])
def test_what_the_mask_leaves_may_begin_with_outliers(side, channels_last):
    """The eight numbers that the kernels look at first lie far from all others: a second look is needed."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, side * side)
    valid = torch.rand(side * side) > 0.2
    first = valid.nonzero()[:8, 0]
    x[:, :, first] += 1e5
    x[:, :, ~valid] = float("nan")
    mask = valid.view(1, 1, side, side).expand(2, 1, side, side)
    images = x.view(2, 5, side, side)
    images = images.contiguous(memory_format=torch.channels_last) if channels_last else images
    truth = T.instance_norm(x[:, :, valid].double())
    got = F.instance_norm(images, mask=mask).flatten(2)[:, :, valid]
    assert error(got, truth) < EXACT / 4
    together = F.batch_norm(images, None, None, training=True, mask=mask).flatten(2)[:, :, valid]
    assert error(together, T.batch_norm(x[:, :, valid].double(), None, None, training=True)) < EXACT / 4
