"""swap: our layers in a model that exists, with everything else as it was."""

import copy

import pytest
import torch
from torch import nn

import normkit as nk


class Network(nn.Module):
    """Every norm of torch, one of them shared by two parents, and a hook."""

    def __init__(self):
        super().__init__()
        self.shared = nn.LayerNorm(6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), self.shared) for _ in range(2))
        self.rest = nn.Sequential(nn.RMSNorm(6), nn.BatchNorm1d(6), nn.GroupNorm(2, 6))
        self.images = nn.Sequential(nn.BatchNorm2d(3), nn.InstanceNorm2d(3, affine=True), nn.BatchNorm2d(3))
        self.images[2].eval()
        self.rest[0].weight.requires_grad_(False)

    def forward(self, x, images):
        for block in self.blocks:
            x = block(x)
        return self.rest(x).sum() + (self.images(images) * torch.arange(5.0)).sum()


def data():
    torch.manual_seed(0)
    return torch.randn(4, 6), torch.randn(2, 3, 5, 5)


def test_every_torch_norm_becomes_ours_in_place_with_the_same_numbers():
    torch.manual_seed(0)
    model = Network()
    before = copy.deepcopy(model)
    modules, parameters = list(model.modules()), list(model.parameters())
    optimizer = torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.1)
    calls = []
    handle = model.shared.register_forward_hook(lambda *_: calls.append(1))

    report = nk.swap(model)

    assert [type(m).__module__.split(".")[0] for m in model.modules() if "Norm" in type(m).__name__] == [
        "normkit"
    ] * 7
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True)), "the same objects"
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert model.blocks[0][1] is model.blocks[1][1] is model.shared
    assert not model.images[2].training
    assert not model.rest[0].weight.requires_grad
    assert list(model.state_dict()) == list(before.state_dict())
    loss, expected = model(*data()), before(*data())
    torch.testing.assert_close(loss, expected)
    assert len(calls) == 2
    handle.remove()
    loss.backward()
    optimizer.step()
    expected.backward()
    torch.optim.SGD([p for p in before.parameters() if p.requires_grad], lr=0.1).step()
    torch.testing.assert_close(model.state_dict(), before.state_dict(), rtol=1e-4, atol=1e-5)
    assert len(report.replaced) == 7
    assert not report.left
    assert nk.swap(model).replaced == (), "a second time there is nothing to do"


def test_the_report_is_a_table_that_folds_equal_layers():
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)) for _ in range(12)), nn.BatchNorm1d(2)
    )
    assert str(nk.swap(model)).splitlines() == [
        "replaced 13 of 13 norms",
        "    12 x *.*  LayerNorm -> normkit.LayerNorm",
        "     1 x 12   BatchNorm1d -> normkit.BatchNorm1d",
    ]


def test_a_model_that_is_a_norm_is_swapped_itself():
    layer = nn.LayerNorm(4)
    nk.swap(layer)
    assert isinstance(layer, nk.LayerNorm)


def test_a_derived_class_is_left_alone_and_reported():
    class Special(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x).relu()

    model = nn.Sequential(Special(4), nn.LayerNorm(4))
    report = nk.swap(model)
    assert type(model[0]) is Special
    assert type(model[1]) is nk.LayerNorm
    assert "derives from torch.nn" in str(report)
    assert "replaced 1 of 2 norms" in str(report)


def test_a_rule_with_a_function_replaces_the_named_class_alone():
    model = Network()
    calls = []
    model.images[0].register_forward_hook(lambda *_: calls.append(1))
    report = nk.swap(model.double(), {"BatchNorm2d": lambda old: nk.GroupNorm(3, old.num_features)})
    assert [type(m) for m in model.images] == [nk.GroupNorm, nn.InstanceNorm2d, nk.GroupNorm]
    assert type(model.rest[1]) is nn.BatchNorm1d
    assert model.images[0].weight.dtype == torch.float64
    assert not model.images[2].training
    x, images = data()
    model(x.double(), images.double())
    assert calls == [1]
    assert "BatchNorm2d -> normkit.GroupNorm" in str(report)


def test_a_rule_with_a_class_takes_over_settings_and_parameters():
    model = nn.Sequential(nn.LayerNorm(6, eps=1e-3), nn.BatchNorm1d(6, momentum=0.3))
    weight = model[0].weight
    nk.swap(model, {"LayerNorm": nk.RMSNorm, "BatchNorm1d": nk.SyncBatchNorm})
    assert type(model[0]) is nk.RMSNorm
    assert (model[0].normalized_shape, model[0].eps) == ((6,), 1e-3)
    assert model[0].weight is weight
    assert type(model[1]) is nk.SyncBatchNorm
    assert model[1].momentum == 0.3
    assert model(torch.randn(4, 6)).shape == (4, 6)


def test_a_shared_module_is_replaced_once_and_stays_shared():
    model = Network()
    made = []
    nk.swap(model, {"LayerNorm": lambda old: made.append(nk.RMSNorm(old.normalized_shape)) or made[-1]})
    assert len(made) == 1
    assert model.shared is model.blocks[0][1] is model.blocks[1][1] is made[0]


def test_a_rule_may_wrap_the_old_module():
    model = nn.Sequential(nn.LayerNorm(4))
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    nk.swap(model, {nn.LayerNorm: lambda old: nn.Sequential(old, nn.ReLU())})
    assert (model(torch.randn(3, 4)) >= 0).all()
    assert calls == [1]


def test_a_class_that_is_not_ours_is_built_and_not_assumed():
    class Gated(nn.LayerNorm):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.gate = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return super().forward(x) * self.gate

    model = nn.Sequential(nn.LayerNorm(4))
    weight = model[0].weight
    nk.swap(model, {"LayerNorm": Gated})
    assert not model(torch.randn(3, 4)).any()
    assert model[0].weight is weight


def test_a_module_whose_forward_was_replaced_is_left_alone():
    model = nn.Sequential(nn.LayerNorm(4))
    model[0].forward = lambda x: x
    report = nk.swap(model)
    assert type(model[0]) is nn.LayerNorm
    assert "forward was replaced" in str(report)


def test_rules_for_classes_that_the_model_lacks_are_reported():
    model = nn.Sequential(nn.BatchNorm2d(4))
    rules = {"BatchNorm1d": nk.SyncBatchNorm, "BatchNorm2d": nk.SyncBatchNorm}
    assert "no BatchNorm1d in the model: its rule was not used" in str(nk.swap(model, rules))
    assert type(model[0]) is nk.SyncBatchNorm


def test_a_rule_that_returns_the_old_module_replaces_nothing():
    assert nk.swap(nn.Sequential(nn.LayerNorm(4)), {"LayerNorm": lambda old: old}).replaced == ()


def test_what_a_new_module_takes_over_is_not_converted():
    model = nn.Sequential(nn.BatchNorm2d(4))
    model[0].weight.data = model[0].weight.data.bfloat16()
    mean = model[0].running_mean
    nk.swap(model, {"BatchNorm2d": nk.InstanceNorm2d})
    assert type(model[0]) is nk.InstanceNorm2d
    assert model[0].running_mean is mean
    assert mean.dtype == torch.float32
    assert model[0].weight.dtype == torch.bfloat16


def test_a_bias_that_is_missing_stays_missing():
    model = nn.Sequential(nn.LayerNorm(4, bias=False))
    nk.swap(model, {"LayerNorm": nk.DyT})
    assert model[0].bias is None


def test_a_new_module_goes_to_the_device_of_the_old():
    model = nn.Sequential(nn.LayerNorm(4, device="meta"))
    nk.swap(model, {"LayerNorm": lambda old: nk.RMSNorm(4)})
    assert model[0].weight.is_meta


def test_hooks_of_both_modules_are_kept():
    calls = []
    model = nn.Sequential(nn.LayerNorm(4))
    handle = model[0].register_forward_hook(lambda *_: calls.append("old"))

    def rule(old):
        new = nk.RMSNorm(4)
        new.register_forward_hook(lambda *_: calls.append("new"))
        return new

    nk.swap(model, {"LayerNorm": rule})
    model(torch.randn(2, 4))
    assert calls == ["old", "new"]
    handle.remove()
    model(torch.randn(2, 4))
    assert calls == ["old", "new", "new"]


@pytest.mark.parametrize("rules", [None, {"LayerNorm": nk.RMSNorm}, {"LayerNorm": nk.DyT}])
def test_torchs_encoder_calls_the_norms_in_inference_too(rules):
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    nk.swap(layer, rules)
    calls = []
    layer.norm1.register_forward_pre_hook(lambda *_: calls.append(1))
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        without = layer(x)
    torch.testing.assert_close(without, layer(x))
    assert len(calls) == 2


def test_a_lazy_norm_is_reported():
    assert "LazyBatchNorm1d left as it is" in str(nk.swap(nn.Sequential(nn.LazyBatchNorm1d())))


def test_a_rule_that_fails_leaves_the_whole_model_as_it_was():
    model = nn.Sequential(nn.LayerNorm(4), nn.LayerNorm(6))

    def rule(old):
        if old.normalized_shape == (6,):
            raise KeyError("six")
        return nk.RMSNorm(4)

    with pytest.raises(KeyError, match="six"):
        nk.swap(model, {"LayerNorm": rule})
    assert [type(m) for m in model] == [nn.LayerNorm, nn.LayerNorm]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"BatchNorm2D": nk.GroupNorm}, "did you mean 'BatchNorm2d'?"),
        ({"BatchNorm2d": None}, "a class, or a function"),
        ({"BatchNorm2d": "GroupNorm"}, "a class, or a function"),
        ({"BatchNorm2d": nk.GroupNorm(1, 3)}, "lambda old: ..."),
        (["BatchNorm2d"], "a dict"),
        ({"BatchNorm2d": nk.GroupNorm}, "which has no num_groups, num_channels"),
        ({"BatchNorm2d": lambda old: None}, "returned NoneType"),
    ],
)
def test_a_wrong_rule_is_refused(rules, words):
    with pytest.raises(nk.NormkitError) as error:
        nk.swap(Network(), rules)
    assert words in str(error.value)


def test_a_wrong_model_is_refused():
    with pytest.raises(nk.NormkitError, match=r"expected: a torch\.nn\.Module"):
        nk.swap("model")
    with pytest.raises(nk.NormkitError, match="cannot replace itself"):
        nk.swap(nn.LayerNorm(4), {"LayerNorm": lambda old: nk.RMSNorm(4)})
