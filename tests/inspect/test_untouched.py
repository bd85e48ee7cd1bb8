"""Looking at a model changes nothing, however it ends; and it works wherever a model can be entered."""

import copy
import random

import hugging_face
import numpy
import pytest
import torch
import transformers
from torch import nn

import normkit as nk
from normkit.errors import NormkitError


class Moody(nn.Module):
    """Moves everything that a forward can move."""

    def __init__(self, end=None):
        super().__init__()
        self.conv, self.bn, self.dropout = nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(()))
        self.count, self.end = 0, end

    def forward(self, x):
        x.mul_(2)
        self.seen += 1
        self.count += 1
        self.last = x
        self.conv.weight.data.clamp_(-0.1, 0.1)
        with torch.no_grad():
            self.conv.bias.add_(1)
        self.bn.training = True
        y = self.dropout(self.bn(self.conv(x))) * random.random() * numpy.random.rand() * torch.rand(())
        if self.end is not None:
            raise self.end
        return y


def state(model):
    tensors = {n: t.clone() for n, t in (*model.named_parameters(), *model.named_buffers())}
    plain = [
        {k: v for k, v in vars(m).items() if k[0] != "_" and not isinstance(v, torch.Tensor)}
        for m in model.modules()
    ]
    hooks = [
        {k: dict(v) for k, v in vars(m).items() if "hooks" in k and isinstance(v, dict)}
        for m in model.modules()
    ]
    grads = {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    return (
        tensors,
        plain,
        hooks,
        grads,
        torch.get_rng_state(),
        random.getstate(),
        numpy.random.get_state()[1].copy(),
    )


def assert_same(before, after):
    for kind in (0, 3):
        assert before[kind].keys() == after[kind].keys()
        for name, tensor in before[kind].items():
            assert tensor is None or torch.equal(tensor, after[kind][name]), name
    assert before[1:3] == after[1:3]
    assert torch.equal(before[4], after[4])
    assert before[5] == after[5]
    assert (before[6] == after[6]).all()


@pytest.mark.parametrize(
    "end", [None, ValueError("no"), KeyboardInterrupt()], ids=["ends", "raises", "Ctrl-C"]
)
@pytest.mark.parametrize("look", [nk.inspect, nk.doctor], ids=["inspect", "doctor"])
def test_nothing_is_changed_however_it_ends(look, end):
    model = Moody(end).eval()
    nn.functional.mse_loss(model.conv(torch.randn(2, 3, 5)), torch.zeros(2, 4, 5)).backward()
    model.conv.register_forward_hook(lambda *_: None)
    x = torch.randn(64, 3, 5)
    given, before, patched = x.clone(), state(model), nn.Module.__call__
    if end is None:
        look(model, x)
    else:
        with pytest.raises(NormkitError if isinstance(end, Exception) else KeyboardInterrupt):
            look(model, x)
    assert_same(before, state(model))
    assert torch.equal(x, given)
    assert nn.Module.__call__ is patched
    assert not torch.overrides._get_current_function_mode_stack()


def test_the_comparison_can_fail():
    model = Moody().eval()
    before = state(model)
    model.bn.running_mean.add_(1)
    with pytest.raises(AssertionError):
        assert_same(before, state(model))


def test_a_cache_in_the_batch_is_not_written_to():
    model, batch = hugging_face.build("llama")
    cache = model(**batch, use_cache=True).past_key_values
    length = cache.get_seq_length()
    found = nk.inspect(model, {"input_ids": batch["input_ids"][:, :1], "past_key_values": cache})
    assert len(found) == 7
    assert cache.get_seq_length() == length


@pytest.mark.parametrize("training", [True, False])
def test_training_and_evaluation_give_the_same_sites(training):
    model, batch = hugging_face.build("gpt2", training=training)
    assert [s.place for s in nk.inspect(model, batch)] == ["pre"] * 6 + ["final"]
    assert model.training is training


def test_the_meta_device_needs_no_weights():
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=3)).eval()
    assert [s.place for s in nk.inspect(model)] == ["pre"] * 6 + ["final"]
    assert all(p.is_meta for p in model.parameters())


def test_experts_on_the_meta_device_are_assumed_to_be_chosen():
    config = transformers.MixtralConfig(
        num_hidden_layers=2, hidden_size=64, intermediate_size=32, vocab_size=128
    )
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(config).eval()
    found = nk.inspect(model)
    assert [s.place for s in found] == ["pre"] * 4 + ["final"]


def test_compiled_and_parallel_wrappers_are_entered():
    model, batch = hugging_face.build("gpt2")
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        assert [s.path for s in nk.inspect(wrapped, batch)] == [s.path for s in nk.inspect(model, batch)]
    inside = nn.Sequential(nn.Linear(8, 8), torch.compile(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))))
    assert len(nk.inspect(inside, torch.randn(2, 8))) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*quantize_per_tensor:UserWarning")
def test_quantised_layers_write_and_read():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    small = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear})
    (site,) = nk.inspect(small, torch.randn(2, 8))
    assert (site.path, site.place) == ("1", "after-linear")


class LowRank(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.a, self.b = (
            base,
            nn.Linear(base.in_features, 2, bias=False),
            nn.Linear(2, base.out_features),
        )

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def test_adapters_are_no_residual_sums():
    model, batch = hugging_face.build("llama")
    for layer in model.model.layers:
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
        layer.mlp.down_proj = LowRank(layer.mlp.down_proj)
    found = nk.inspect(model, batch)
    assert [s.place for s in found] == ["pre"] * 6 + ["final"]
    assert len(found.residuals) == 6


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (torch.randn(2, 3), "raised RuntimeError"),
        ("text", "the batch is of type str"),
        (None, "was given no batch"),
    ],
)
def test_a_batch_that_does_not_fit_is_said_in_a_line(batch, says):
    with pytest.raises(NormkitError, match=says):
        nk.inspect(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), batch)


def test_a_batch_is_taken_as_a_loader_gives_it():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    assert len(nk.inspect(model, (torch.randn(2, 8), torch.zeros(2)))) == 1
    assert len(nk.inspect(model, {"input": torch.randn(2, 8)})) == 1
    with pytest.raises(NormkitError, match=r"inspect got list"):
        nk.inspect([], torch.randn(2, 8))
