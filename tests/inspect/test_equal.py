"""The probe: norms of other libraries are replaced only where they compute what ours does."""

import pytest
import torch
import transformers
from torch import nn

import normkit as nk
from normkit.inspect import swapping

transformers.logging.set_verbosity_error()


SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
MODELS = {  # name -> (class, configuration, norms)
    "Llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**GROUPED), 5),
    "Mistral": (transformers.MistralForCausalLM, transformers.MistralConfig(**GROUPED), 5),
    "Qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config(**GROUPED, head_dim=8), 9),
    "Gemma2": (transformers.Gemma2ForCausalLM, transformers.Gemma2Config(**GROUPED, head_dim=8), 9),
    "Olmo2": (transformers.Olmo2ForCausalLM, transformers.Olmo2Config(**GROUPED), 9),
    "BERT": (transformers.BertModel, transformers.BertConfig(**SMALL), 5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_hugging_face_models_keep_their_numbers(name, dtype):
    kind, config, norms = MODELS[name]
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # a gain of 1 would hide a wrong convention
                parameter.add_(torch.rand_like(parameter))
    model.to(dtype)
    ids = torch.randint(3, 64, (2, 7))
    expected = model(ids)[0]
    report = nk.swap(model)
    assert (len(report.replaced), len(report.left)) == (norms, 0)
    assert all(s.new in ("normkit.RMSNorm", "normkit.LayerNorm") for s in report.replaced)
    # A unit of bf16 at 0.5, the size of these logits; torch's LayerNorm, in BERT, sums in another order.
    exact = {"rtol": 2e-6, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 4e-3, "atol": 4e-3}
    torch.testing.assert_close(model(ids)[0], expected, **exact)


@pytest.mark.parametrize(
    ("name", "multiply", "zero_centered"),
    [("Llama", "after_cast", False), ("Qwen3", "after_cast", False), ("Gemma2", "before_cast", True)],
)
def test_the_convention_of_a_model_is_found(name, multiply, zero_centered):
    kind, config, _ = MODELS[name]
    model = kind(config)
    nk.swap(model)
    norm = model.model.norm
    assert (norm.multiply, norm.zero_centered_weight) == (multiply, zero_centered)
    assert norm.eps == config.rms_norm_eps


class Off(nn.Module):
    """Looks like an RMSNorm, and differs in one thing."""

    def __init__(self, what):
        super().__init__()
        self.weight, self.eps, self.what = nn.Parameter(torch.ones(16)), 1e-6, what

    def forward(self, x):
        power = (
            x.float().abs().mean(-1, keepdim=True) ** 2
            if self.what == "L1"
            else x.float().pow(2).mean(-1, keepdim=True)
        )
        root = power.sqrt() + self.eps if self.what == "eps outside" else (power + self.eps).sqrt()
        y = (x.float() - x.float().mean(-1, keepdim=True) * (self.what == "centred")) / root
        gain = self.weight * 0.5 if self.what == "half the gain" else self.weight
        if self.what == "narrow statistics":
            y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.what == "detached root":
            y = x.float() / root.detach()
        if self.what == "rounded twice":
            return y.to(x.dtype) * gain.to(x.dtype)
        if self.what == "narrow weights":
            return (gain * y).to(self.weight.dtype)
        if self.what == "dropout in training":
            y = nn.functional.dropout(y, training=self.training)
        if self.what == "channels first" and x.ndim > 2:
            y = x.float() * torch.rsqrt(x.float().pow(2).mean(1, keepdim=True) + self.eps)
        return (gain * y).to(x.dtype)


class OffRMSNorm(Off):
    pass


OFF = ["L1", "eps outside", "centred", "half the gain", "narrow statistics", "dropout in training"]
OFF += ["channels first", "detached root", "narrow weights", "rounded twice"]


def test_a_weight_of_another_name_is_left_alone():
    class ScaleRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.eps = nn.Parameter(torch.ones(8)), 1e-6

        def forward(self, x):
            return nk.functional.rms_norm(x, (8,), self.scale, self.eps)

    model = nn.Sequential(ScaleRMSNorm())
    assert "one vector called weight" in str(nk.swap(model))
    model(torch.randn(2, 8))


def test_the_probe_does_not_depend_on_the_defaults_of_the_process():
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            assert len(nk.swap(nn.Sequential(OffRMSNorm("nothing"))).replaced) == 1
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("what", OFF)
def test_a_norm_that_computes_something_else_is_left_alone(what):
    model = nn.Sequential(OffRMSNorm(what)).eval()
    report = nk.swap(model)
    assert type(model[0]) is OffRMSNorm
    assert len(report.left) == 1


def test_layers_of_one_kind_are_probed_once(monkeypatch):
    probed = []
    real = swapping.as_rms_norm
    monkeypatch.setattr(swapping, "as_rms_norm", lambda m: probed.append(m) or real(m))
    model = nn.Sequential(*(OffRMSNorm("nothing") for _ in range(5)), OffRMSNorm("L1"), OffRMSNorm("L1"))
    report = nk.swap(model)
    assert (len(probed), len(report.replaced), len(report.left)) == (2, 5, 2)


def test_the_probe_accepts_the_same_class_when_nothing_is_off():
    model = nn.Sequential(OffRMSNorm("nothing"))
    report = nk.swap(model)
    assert type(model[0]) is nk.RMSNorm, report
    assert (model[0].eps, model[0].multiply) == (1e-6, "before_cast")


def test_the_probe_neither_calls_nor_changes_the_module():
    module = OffRMSNorm("nothing")
    module.register_forward_hook(lambda *_: pytest.fail("the module was called"))
    with torch.no_grad():
        module.weight.fill_(5.0)
    nk.swap(nn.Sequential(module))
    assert module.weight.eq(5.0).all()


def test_a_model_on_the_meta_device_can_be_swapped():
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(MODELS["Llama"][1])
    assert len(nk.swap(model).replaced) == 5
    assert all(p.is_meta for p in model.parameters())
