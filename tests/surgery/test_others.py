"""Statistics, other norms, queries and keys, gains."""

import copy
import io

import pytest
import torch
from surgery.models import off, same_bits, state, trained
from surgery.test_convolutions import BatchNormAct2d
from torch import nn

import normkit as nk
from normkit import NormkitError, surgery

images = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))
ids = torch.randint(0, 16, (2, 9), generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    return trained(
        nn.Sequential(
            *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1), BatchNormAct2d(8)),
            *(nn.Flatten(), nn.Linear(128, 6), nn.LayerNorm(6), nn.Linear(6, 2)),
        )
    )


def language_model(**options):
    torch.manual_seed(0)
    return trained(nk.LanguageModel(vocab=16, dim=16, depth=2, heads=2, **options))


# BatchNorm


def test_a_frozen_batch_norm_stays_so_in_training_and_keeps_what_its_class_does():
    model = network()
    before, y = state(model), model(images)
    certificate = surgery.freeze_bn(model, images)
    model.train()
    torch.testing.assert_close(model(images), y)
    assert same_bits(before, model), "no statistics moved"
    assert not model[1].weight.requires_grad
    assert float(model[4](torch.randn(2, 8, 4, 4)).min()) == 0, "its ReLU goes on"
    for again in (copy.deepcopy(model), torch.load(_saved(model), weights_only=False)):
        assert not again.train()[1].training
        torch.testing.assert_close(again(images), y)
    assert len(surgery.freeze_bn(model, images).edits) == 0, "idempotent"
    certificate.undo()
    assert model.train()[1].training
    assert model[1].weight.requires_grad
    assert type(model[4]) is BatchNormAct2d


def _saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file


def test_only_the_statistics_are_frozen_if_so_asked():
    model = network()
    surgery.freeze_bn(model, images, affine=False)
    assert model[1].weight.requires_grad
    assert not model.train()[1].training


def test_recalibrated_statistics_are_those_of_all_data():
    model = network().train()
    data = [(3 * torch.randn(n, 3, 6, 6) + 1, torch.zeros(n)) for n in (8, 8, 3)]
    before = state(model)
    certificate = surgery.recalibrate_bn(model, data)
    seen = model[0](torch.cat([x for x, _ in data]))
    torch.testing.assert_close(model[1].running_mean, seen.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model[1].running_var, seen.var((0, 2, 3)), rtol=1e-4, atol=1e-5)
    assert model.training
    assert model[1].momentum == 0.1
    assert not certificate.exact
    assert certificate.drift > 0
    certificate.undo()
    assert same_bits(before, model)


def test_recalibration_takes_so_many_batches_and_refuses_none_and_nan():
    model = network()
    surgery.recalibrate_bn(model, iter([images, images + 100]), batches=1)
    torch.testing.assert_close(model[1].running_mean, model[0](images).mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    with pytest.raises(NormkitError, match="without batches"):
        surgery.recalibrate_bn(model, [])
    before = state(model)
    with pytest.raises(NormkitError, match="not finite"):
        surgery.recalibrate_bn(model, [images, images * float("nan")])
    assert same_bits(before, model)
    with pytest.raises(NormkitError, match="batches="):
        surgery.recalibrate_bn(model, [images], batches=0)


def test_to_sync_and_back():
    model = network()
    y = model(images)
    there = surgery.bn_to_sync(model, images)
    assert isinstance(model[1], nk.SyncBatchNorm)
    assert isinstance(model[4], BatchNormAct2d)
    torch.testing.assert_close(model(images), y)
    assert len(surgery.bn_to_sync(model, images).edits) == 0
    surgery.sync_to_bn(model, images)
    assert type(model[1]) is nk.BatchNorm2d
    assert type(model[4]) is BatchNormAct2d
    torch.testing.assert_close(model(images), y)
    del there


def test_torchs_own_sync_batch_norm_and_classes_of_it_become_local():
    class Act(nn.SyncBatchNorm):
        def forward(self, x):
            return super().forward(x).relu()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.SyncBatchNorm(4), Act(4)).eval()
    y = model(images)
    surgery.sync_to_bn(model, images)
    assert type(model[1]) is nn.BatchNorm2d
    torch.testing.assert_close(model(images), y)
    model.train()(images)
    assert int(model[2].num_batches_tracked) == 1


# another function


def test_bn_to_group_carries_gain_and_bias_and_measures_the_drift():
    model = network()
    gain, before = model[1].weight, state(model)
    certificate = surgery.bn_to_group(model, images, groups=3)
    assert isinstance(model[1], nn.GroupNorm)
    assert model[1].num_groups == 2, "3 does not divide 8"
    assert model[1].weight is gain
    assert [type(m) for m in model[4]] == [nk.GroupNorm, nn.ReLU]
    assert not certificate.exact
    assert not certificate.certified
    assert "changes the function" in str(certificate)
    assert certificate.drift == pytest.approx(_drift(network(), model), rel=1e-3)
    certificate.undo()
    assert same_bits(before, model)


def _drift(old, new):
    a, b = old(images).detach(), new(images).detach()
    return float((a - b).abs().max() / a.abs().max())


def test_ln_to_rms_equals_the_formula():
    model = network()
    x = torch.randn(3, 6)
    weight, bias, eps = model[7].weight, model[7].bias, model[7].eps
    surgery.ln_to_rms(model, images)
    expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight + bias
    torch.testing.assert_close(model[7](x), expected)


def test_dyt_gets_gain_bias_and_the_best_alpha_of_a_grid():
    model = language_model(norm="rms")
    gain = model.stack.final.norm.weight
    certificate = surgery.to_dyt(model, ids)
    dyt = model.stack.final.norm
    assert isinstance(dyt, nk.DyT)
    assert dyt.weight is gain
    assert 1e-4 < float(dyt.alpha.detach()) < 100
    worse = copy.deepcopy(model)
    for module in worse.modules():
        if isinstance(module, nk.DyT):
            module.alpha.data.mul_(30)
    y = language_model(norm="rms")(ids)
    with torch.no_grad():
        assert float((model(ids) - y).square().mean()) < float((worse(ids) - y).square().mean())
    assert "train on" in str(certificate)


def test_qk_norms_keep_the_size_of_heads_and_bound_the_logits():
    model = language_model()
    before, y = state(model), model(ids)
    certificate = surgery.add_qk_norm(model, ids)
    norms = [m for m in model.modules() if type(m).__name__ == "HeadNorm"]
    assert norms
    assert certificate.drift < 0.5
    assert torch.isfinite(model(ids)).all()
    model.train()(ids).sum().backward()
    assert all(norm.weight.grad is not None for norm in norms)
    with pytest.raises(NormkitError, match="normed already"):
        surgery.add_qk_norm(model, ids)
    certificate.undo()
    assert same_bits(before, model.eval())
    torch.testing.assert_close(model(ids), y)


class Fused(nn.Module):
    """Heads of queries, keys and values interleaved, as in GPT-NeoX."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        parts = self.qkv(x).reshape(*x.shape[:2], 2, 12).transpose(1, 2)
        q, k, v = parts.split(4, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v)


def test_of_a_fused_matrix_queries_and_keys_are_normed_and_values_are_not():
    torch.manual_seed(0)
    model = Fused().eval()
    x = torch.randn(2, 5, 8)
    plain = model.qkv(x).unflatten(-1, (2, 3, 4))
    surgery.add_qk_norm(model, x)
    normed = model.qkv(x).unflatten(-1, (2, 3, 4))
    assert torch.equal(normed[..., 2, :], plain[..., 2, :])
    for part in (0, 1):
        size = plain[..., part, :].square().mean((0, 1, 3)).sqrt()
        found = normed[..., part, :].square().mean(-1).sqrt()
        torch.testing.assert_close(found, size.expand_as(found), rtol=1e-3, atol=1e-3)


# gains


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_equalised_gains_compute_the_same_bits(alpha):
    model = language_model(norm="rms", tied=False)
    with torch.no_grad():
        model.stack.final.norm.weight[3] = 500.0
    old, y = copy.deepcopy(model), model(ids)
    certificate = surgery.equalise_gains(model, ids, alpha=alpha)
    assert torch.equal(model(ids), y), "powers of two round nothing"
    assert off(old, model, ids) == 0
    factor = model.stack.final.norm.weight / old.stack.final.norm.weight
    assert bool((factor.log2() == factor.log2().round()).all())
    if alpha == 1:
        seen = []
        model.stack.final.norm.register_forward_hook(lambda m, a, out: seen.append(out))
        model(ids)
        top = seen[0].detach().abs().amax((0, 1))
        assert float(top.max() / top.min()) < 4, "all channels of the norm are equally large"
    before = state(model)
    again = surgery.equalise_gains(model, ids, alpha=alpha)
    assert len(again.edits) == 0 or torch.equal(model(ids), y)
    del certificate, before


def test_equalise_refuses_a_bad_alpha():
    for alpha in (-0.1, 1.5, "half", True, float("nan")):
        with pytest.raises(NormkitError, match="alpha"):
            surgery.equalise_gains(language_model(), ids, alpha=alpha)


@pytest.mark.parametrize("name", ["ln_to_rms", "to_dyt"])
def test_torchs_own_encoder_layer_uses_the_new_norm_without_gradients_too(name):
    """Without gradients it has a fast path, which computes a LayerNorm whatever the module is."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8), enable_nested_tensor=False).eval()
    batch = torch.randn(3, 6, 8) + 2
    with torch.no_grad():
        before = net(batch)
    certificate = getattr(surgery, name)(net, batch)
    with torch.no_grad():
        fast = net(batch)
    torch.testing.assert_close(fast, net(batch).detach())
    assert (fast - before).abs().max() > 1e-3
    certificate.undo()
    with torch.no_grad():
        assert torch.equal(net(batch), before)
