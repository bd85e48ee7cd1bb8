"""Replace ``torch.nn.X`` by ``normkit.X``, and nothing else changes."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn

import normkit as nk

NAMES = [
    *("LayerNorm", "RMSNorm", "GroupNorm"),
    *("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"),
    *("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"),
]
ARGUMENTS = {"GroupNorm": (2, 4)}
SHAPES = {"1d": (3, 4, 5), "2d": (3, 4, 5, 2), "3d": (3, 4, 5, 2, 2)}


def arguments(name):
    return ARGUMENTS.get(name, (4,))


def shape(name):
    return SHAPES.get(name[-2:], (3, 4, 4) if name in ("LayerNorm", "RMSNorm") else (3, 4, 5))


def options(name):
    """Every way to build it, as keyword arguments."""
    if name in ("LayerNorm", "RMSNorm"):
        yield from ({}, {"eps": 1e-3}, {"elementwise_affine": False}, {"normalized_shape": (4, 4)})
        if name == "LayerNorm":
            yield {"bias": False}
    elif name == "GroupNorm":
        yield from ({}, {"eps": 1e-3}, {"affine": False})
    else:
        yield from ({}, {"eps": 1e-3}, {"affine": True}, {"affine": False}, {"momentum": 0.3})
        yield from ({"track_running_stats": True}, {"track_running_stats": False})
        yield {"affine": True, "track_running_stats": True}
        yield {"momentum": None, "track_running_stats": True}


def both(name, keywords, **more):
    keywords = {**keywords, **more}
    positional = () if "normalized_shape" in keywords else arguments(name)
    return getattr(nk, name)(*positional, **keywords), getattr(nn, name)(*positional, **keywords)


EVERY = [
    pytest.param(name, keywords, id=f"{name}-{keywords}") for name in NAMES for keywords in options(name)
]


@pytest.mark.parametrize("name", NAMES)
def test_the_constructor_takes_torchs_arguments_in_torchs_order(name):
    ours, theirs = (list(inspect.signature(getattr(m, name)).parameters.values()) for m in (nk, nn))
    plain = [p for p in theirs if p.kind is not p.KEYWORD_ONLY]
    assert [(p.name, p.default, p.kind) for p in ours[: len(plain)]] == [
        (p.name, p.default, p.kind) for p in plain
    ]
    assert {p.name for p in theirs} <= {p.name for p in ours}
    assert all(p.kind is p.KEYWORD_ONLY for p in ours[len(plain) :])


@pytest.mark.parametrize("function", ["layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"])
def test_the_function_takes_torchs_arguments_in_torchs_order(function):
    ours, theirs = (
        list(inspect.signature(getattr(m, function)).parameters.values())
        for m in (nk.functional, nn.functional)
    )
    assert [(p.name, p.default) for p in ours[: len(theirs)]] == [(p.name, p.default) for p in theirs]
    assert all(p.kind is p.KEYWORD_ONLY for p in ours[len(theirs) :])


@pytest.mark.parametrize(("name", "keywords"), EVERY)
def test_attributes_repr_and_state_are_torchs(name, keywords):
    ours, theirs = both(name, keywords)
    assert repr(ours) == repr(theirs)
    assert {k for k in vars(theirs) if not k.startswith("_")} <= set(dir(ours))
    public = {k: v for k, v in vars(theirs).items() if not k.startswith("_")}
    assert {k: getattr(ours, k) for k in public} == public
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    for mine, yours in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        assert torch.equal(mine, yours)
        assert mine.dtype == yours.dtype


@pytest.mark.parametrize(("name", "keywords"), EVERY)
def test_outputs_and_state_follow_torch_through_training_and_evaluation(name, keywords):
    torch.manual_seed(0)
    ours, theirs = both(name, keywords, dtype=torch.float64)
    for parameter in theirs.parameters():
        nn.init.uniform_(parameter)
    ours.load_state_dict(theirs.state_dict())
    for training in (True, True, False, True, False):
        x = torch.randn(shape(name), dtype=torch.float64) * 3 + 2
        torch.testing.assert_close(ours.train(training)(x), theirs.train(training)(x))
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    ours.reset_parameters()
    theirs.reset_parameters()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_is_an_instance_of_torchs_class(name):
    layer = getattr(nk, name)(*arguments(name))
    if name == "SyncBatchNorm":  # DDP refuses torch's on a CPU: see the class
        assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
        assert not isinstance(layer, nn.SyncBatchNorm)
    else:
        assert isinstance(layer, getattr(nn, name))


def _save_and_load(layer):
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
    "torch.save": _save_and_load,
}
OURS = [
    lambda: nk.BatchNorm1d(4, axis=-1),
    lambda: nk.RMSNorm(4, zero_centered_weight=True, multiply="after_cast"),
    lambda: nk.Norm("b l [d]", d=4),
    lambda: nk.Norm("b (h [d])", h=2, d=2),
    lambda: nk.PowerNorm(4),
    lambda: nk.DyT(4),
    lambda: nk.ScaleNorm(4),
    lambda: nk.AdaNorm(nk.RMSNorm(4), 4, 2),
    *(lambda name=name: getattr(nk, name)(*arguments(name)) for name in NAMES),
]


@pytest.mark.parametrize("copy_of", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("make", OURS, ids=lambda make: type(make()).__name__)
def test_a_copy_is_the_same_layer_with_parameters_of_its_own(make, copy_of):
    layer = make()
    for parameter in layer.parameters():
        nn.init.uniform_(parameter)
    twin = copy_of(layer)
    assert repr(twin) == repr(layer)
    torch.testing.assert_close(twin.state_dict(), layer.state_dict())
    for parameter, other in zip(twin.parameters(), layer.parameters(), strict=True):
        assert parameter is not other


@pytest.mark.parametrize("make", OURS, ids=lambda make: type(make()).__name__)
def test_a_layer_can_be_made_on_the_meta_device_and_filled_later(make):
    with torch.device("meta"):
        layer = make()
    assert all(t.is_meta for t in (*layer.parameters(), *layer.buffers()))
    for part in layer.to_empty(device="cpu").modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    torch.testing.assert_close(layer.state_dict(), make().state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_device_and_dtype_are_taken(name):
    layer = getattr(nk, name)(*arguments(name), device="meta", dtype=torch.bfloat16)
    floating = [t for t in (*layer.parameters(), *layer.buffers()) if t.is_floating_point()]
    assert all(t.is_meta and t.dtype == torch.bfloat16 for t in floating)
    assert layer(torch.empty(shape(name), device="meta", dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"])
def test_instance_norm_takes_a_sample_without_a_batch(name):
    ours, theirs = both(name, {"affine": True})
    x = torch.randn(shape(name)[1:])
    torch.testing.assert_close(ours(x), theirs(x))


LAYOUTS = {
    "transposed": lambda: torch.randn(2, 5, 4).transpose(1, 2),
    "images": lambda: torch.randn(2, 4, 3, 5),
    "channels_last": lambda: torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last),
    "channels_last_3d": lambda: torch.randn(2, 4, 3, 5, 2).to(memory_format=torch.channels_last_3d),
    "mirrored": lambda: torch.randn(2, 5, 3, 4).transpose(1, 3),
    "strided": lambda: torch.randn(2, 4, 3, 10)[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name", ["LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm", "InstanceNorm", "SyncBatchNorm"]
)
def test_outputs_lie_in_memory_as_torchs_do(name, layout):
    """So that a view after the norm goes on working. InstanceNorm keeps channels_last: torch loses it."""
    x = LAYOUTS[layout]()
    if name in ("LayerNorm", "RMSNorm"):
        arguments = (x.shape[-1],)
    else:
        arguments = (2, 4) if name == "GroupNorm" else (4,)
        name += f"{x.ndim - 2}d" if name in ("BatchNorm", "InstanceNorm") else ""
    y, expected = getattr(nk, name)(*arguments)(x), getattr(nn, name)(*arguments)(x)
    kept = "InstanceNorm" in name and "channels_last" in layout
    assert y.stride() == (x if kept else expected).stride()


def test_old_checkpoints_without_a_batch_count_load():
    state = nn.BatchNorm1d(4).state_dict()
    del state["num_batches_tracked"]
    state._metadata[""]["version"] = 1
    nk.BatchNorm1d(4).load_state_dict(state)


def test_bias_can_be_left_out_where_recent_torch_allows_it():
    for layer in (
        nk.BatchNorm2d(4, bias=False),
        nk.GroupNorm(2, 4, bias=False),
        nk.InstanceNorm1d(4, affine=True, bias=False),
    ):
        assert layer.bias is None
        assert "weight" in layer.state_dict()


def test_tracking_can_be_switched_off_later_as_in_torch():
    for training in (True, False):
        ours, theirs = nk.BatchNorm1d(4), nn.BatchNorm1d(4)
        x = torch.randn(5, 4) + 3
        for layer in (ours, theirs):
            layer.track_running_stats = False
            layer.train(training)
        torch.testing.assert_close(ours(x), theirs(x))
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


REPRS = {
    repr(nn.LayerNorm(4))[:-1] + ", axis=1)": lambda: nk.LayerNorm(4, axis=1),
    "RMSNorm((4,), eps=None, elementwise_affine=True, zero_centered_weight=True, multiply='after_cast')": (
        lambda: nk.RMSNorm(4, zero_centered_weight=True, multiply="after_cast")
    ),
    "Norm('b l [d]', d=4, eps=1e-05, affine='d', center=False)": lambda: nk.Norm(
        "b l [d]", d=4, center=False
    ),
    "Norm('b l [d]', eps=1e-05, affine=False)": lambda: nk.Norm("b l [d]", affine=False),
    "Norm('b l [d]', d=4, eps=1e-05, affine='d', bias=False)": lambda: nk.Norm("b l [d]", d=4, bias=False),
    "ScaleNorm(4, eps=1e-05, axis=1)": lambda: nk.ScaleNorm(4, axis=1),
    "DyT((4,), alpha=0.5, elementwise_affine=True, bias=True, axis=1)": lambda: nk.DyT(4, axis=1),
}


@pytest.mark.parametrize("text", REPRS)
def test_repr_shows_what_torch_does_not_have(text):
    assert repr(REPRS[text]()) == text
    for layer in (nk.BatchNorm1d(4, axis=-1), nk.GroupNorm(2, 4, axis=-1), nk.InstanceNorm1d(4, axis=-1)):
        assert repr(layer).endswith(", axis=-1)")
