"""Every mistake gets one message: what was got, what was expected, how to repair it."""

import pickle

import pytest
import torch
import torch.nn.functional as F

import normkit as nk
from normkit import functional as ours
from normkit.errors import user_error

x23, x234, x2345 = torch.randn(2, 3), torch.randn(2, 3, 4), torch.randn(2, 3, 4, 5)
running = torch.zeros(3), torch.ones(3)


def test_the_message_of_the_style_guide():
    with pytest.raises(nk.NormkitError) as error:
        nk.RMSNorm(8)(torch.randn(2, 7))
    assert str(error.value) == (
        "RMSNorm(8) got an input of shape (2, 7).\n"
        "  expected: last dimension 8, i.e. (..., 8)\n"
        "  fix: build it with RMSNorm(7), or point axis= at the dimension that has that size."
    )


REFUSED = [  # call on a module of functions, words of our message; torch refuses each of them too
    (lambda f: f.layer_norm(x23, (4,)), "last dimension 4"),
    (lambda f: f.layer_norm(x234, (3, 3)), "last 2 dimensions (3, 3), i.e. (..., 3, 3)"),
    (lambda f: f.layer_norm(x23, (1, 2, 3)), "last 3 dimensions"),
    (lambda f: f.layer_norm(x23, ()), "at least one size"),
    (lambda f: f.layer_norm(x23, 3), "pass (3,)"),
    (lambda f: f.layer_norm(x23, (3,), torch.ones(2)), "a weight of shape (2,)"),
    (lambda f: f.layer_norm(x23, (3,), None, torch.ones(2)), "a bias of shape (2,)"),
    (lambda f: f.layer_norm(x23.long(), (3,)), "dtype torch.int64"),
    (lambda f: f.layer_norm([1.0, 2.0], (2,)), "got list"),
    (lambda f: f.layer_norm(torch.tensor(1.0), (1,)), "shape ()"),
    (lambda f: f.rms_norm(x23, (4,)), "last dimension 4"),
    (lambda f: f.rms_norm(x23.long(), (3,)), "floating-point"),
    (lambda f: f.group_norm(x234, 2), "choose one of 1, 3"),
    (lambda f: f.group_norm(x234, 0), "num_groups to divide"),
    (lambda f: f.group_norm(torch.randn(3), 1), "at least two axes"),
    (lambda f: f.group_norm(x234, 3, torch.ones(4)), "a weight of shape (4,)"),
    (lambda f: f.group_norm(torch.randn(1, 3), 3), "a single value a group"),
    (lambda f: f.batch_norm(x23, None, None), "no running_mean and running_var"),
    (lambda f: f.batch_norm(x23, *running, torch.ones(4)), "axis=-1 for channel-last data"),
    (lambda f: f.batch_norm(x23, torch.zeros(4), torch.ones(4)), "a running_mean of shape (4,)"),
    (lambda f: f.batch_norm(torch.randn(1, 3), None, None, training=True), "a single value a channel"),
    (lambda f: f.batch_norm(x23, *running, training=True, eps=0.0), "a number above 0"),
    (lambda f: f.batch_norm(x23, *running, eps=-1e-5), "at least 0"),
    (lambda f: f.instance_norm(torch.randn(2, 3, 1)), "a single value a channel of a sample"),
    (lambda f: f.instance_norm(x23), "a single value"),
    (lambda f: f.instance_norm(x234, use_input_stats=False), "take them from the input"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_torch_refuses_is_refused_with_a_better_message(call, words):
    with pytest.raises((ValueError, RuntimeError, TypeError, IndexError, ZeroDivisionError, AttributeError)):
        call(F)
    with pytest.raises(nk.NormkitError) as error:
        call(ours)
    assert words in str(error.value)


LAYERS = [
    (lambda: nk.LayerNorm(8)(x23), "build it with LayerNorm(3)"),
    (lambda: nk.LayerNorm(8, axis=1)(x2345), "axis 1 as the last dimension 8"),
    (lambda: nk.LayerNorm(3, axis=4)(x2345), "axis=4 for an input with 4 axes"),
    (lambda: nk.RMSNorm(8, multiply="after-cast"), "did you mean 'after_cast'?"),
    (lambda: nk.GroupNorm(3, 8), "num_groups to divide num_channels"),
    (lambda: nk.GroupNorm(0, 8), "num_groups=0"),
    (lambda: nk.BatchNorm1d(3)(x2345), "2 or 3 axes"),
    (lambda: nk.BatchNorm2d(3)(x234), "4 axes"),
    (lambda: nk.BatchNorm1d(4)(x234), "axis=-1 for channel-last data"),
    (lambda: nk.BatchNorm1d(2, axis=0)(x23), "which is the batch"),
    (lambda: nk.SyncBatchNorm(3)(torch.randn(3)), "at least two axes"),
    (lambda: nk.InstanceNorm1d(3, affine=True)(torch.randn(2, 4, 5)), "4 channels"),
    (lambda: nk.InstanceNorm2d(3)(torch.randn(2, 3)), "4 axes, or 3 without the batch"),
    (lambda: nk.InstanceNorm1d(3, axis=7)(x234), "axis=7"),
    (lambda: nk.ScaleNorm(8)(x23), "last dimension 8"),
    (lambda: nk.DyT(8)(x23), "last dimension 8"),
    (lambda: nk.PowerNorm(8)(x23), "a running_square of shape (8,)"),
    (lambda: nk.AdaNorm(nk.LayerNorm(3), 3, 2)(x234, torch.randn(2, 2)), "3 at axis 2"),
    (lambda: nk.AdaNorm(nk.LayerNorm(4), 4, 2)(x234, torch.randn(3, 2)), "(2, 2) or (2, 3, 2)"),
    (lambda: nk.AdaNorm(nk.LayerNorm(4), 4, 2)(x234, None), "AdaNorm's condition got NoneType"),
    (lambda: nk.AdaNorm(nk.LayerNorm(4), 4, 2)(x234, torch.tensor(1.0)), "a condition of shape ()"),
    (lambda: nk.AdaNorm("LayerNorm", 4, 2), "a layer, such as"),
    (
        lambda: nk.AdaNorm(torch.nn.BatchNorm1d(3), 3, 2, axis=1)(
            x234, torch.randn(2, 2), torch.ones(2, 4, dtype=torch.bool)
        ),
        "BatchNorm1d, takes none",
    ),
    (lambda: ours.normalize([1.0], "[a]"), "torch.as_tensor(...)"),
    (lambda: ours.normalize(torch.ones(2, dtype=torch.complex64), "[a]"), "floating-point"),
    (lambda: ours.batch_norm(x23, None, None, training=True, momentum=None), "no num_batches_tracked"),
    (lambda: nk.BatchNorm1d(3)(x23.numpy()), "BatchNorm1d got ndarray"),
    (lambda: nk.InstanceNorm1d(3)(None), "InstanceNorm1d got NoneType"),
    (lambda: nk.InstanceNorm1d(3)(x234[0], mask=[True]), "a mask of list"),
    (lambda: nk.LayerNorm(3, axis=1.0)(x23), "an integer"),
    (lambda: ours.layer_norm(x23, (3,), [1.0] * 3), "a weight of list"),
    (lambda: ours.add_layer_norm(x23, x234, (3,)), "the same shape"),
    (lambda: ours.add_rms_norm(x23, x23.long(), (3,)), "floating-point"),
    (lambda: ours.rms_norm(x23, (3,), multiply="never"), "one of 'before_cast', 'after_cast'"),
    (lambda: ours.normalize("x", "a [b]"), "expected: a torch.Tensor"),
    (lambda: ours.batch_norm(x23, running[0], None, training=True), "both or neither"),
]


@pytest.mark.parametrize(("call", "words"), LAYERS)
def test_mistakes_with_layers_say_what_to_do(call, words):
    with pytest.raises(nk.NormkitError) as error:
        call()
    assert words in str(error.value)


def test_a_mistake_can_be_caught_as_torchs_and_crosses_processes():
    error = user_error("got", expected="this", fix="that")
    assert isinstance(error, ValueError)
    assert isinstance(error, RuntimeError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "got\n  expected: this\n  fix: that"


def test_the_message_survives_torch_compile():
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"RMSNorm\(8\) got an input of shape \(2, 7\)"):
        torch.compile(nk.RMSNorm(8), fullgraph=True, backend="eager")(torch.randn(2, 7))


def test_instance_norm_warns_where_the_number_of_channels_does_not_matter():
    with pytest.warns(UserWarning, match="nothing depends on the number"):
        nk.InstanceNorm1d(3)(torch.randn(2, 4, 5))


def test_converting_a_derived_batch_norm_warns_and_leaves_it():
    class Special(torch.nn.BatchNorm1d):
        pass

    model = torch.nn.Sequential(Special(3), torch.nn.BatchNorm1d(3))
    with pytest.warns(UserWarning, match="derives from BatchNorm"):
        nk.SyncBatchNorm.convert_sync_batchnorm(model)
    assert [type(m) for m in model] == [Special, nk.SyncBatchNorm]
