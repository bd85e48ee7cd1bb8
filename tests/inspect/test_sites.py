"""Where the norms of real models stand, as their papers and code say."""

from collections import Counter

import hugging_face
import pytest
import torch
import transformers
from torch import nn

import normkit as nk

# Three layers each; what stands there is read off the models' own code.
PLACES = {
    "gpt2": {"pre": 6, "final": 1},
    "bert": {"stem": 1, "post": 6},
    "llama": {"pre": 6, "final": 1},
    "qwen3": {"pre": 6, "qk": 6, "final": 1},
    "gemma2": {"pre": 6, "out": 6, "final": 1},
    "gemma3_text": {"pre": 6, "out": 6, "qk": 6, "final": 1},
    "olmo2": {"out": 6, "qk": 6, "final": 1},
    "gpt_neox": {"pre": 6, "final": 1},
    "phi": {"pre": 3, "final": 1},
    "vit": {"pre": 6, "final": 1},
    "t5": {"pre": 15, "final": 2},
    "mamba": {"pre": 3, "final": 1},
}


@pytest.mark.parametrize("name", PLACES)
def test_the_places_of_a_known_model_are_found(name):
    model, batch = hugging_face.build(name)
    found = nk.inspect(model, batch)
    assert Counter(site.place for site in found) == PLACES[name]
    assert not found.unused


def test_a_resnet_has_norms_behind_convolutions_at_the_end_of_branches_and_on_shortcuts():
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[2, 2])
    found = nk.inspect(transformers.ResNetModel(config).eval(), torch.randn(2, 3, 32, 32))
    assert Counter(s.place for s in found) == {"after-conv": 9, "out": 4, "shortcut": 2}
    assert {s.spec.kind for s in found} == {"batch"}


@pytest.mark.parametrize("name", nk.placement.PLACEMENTS)
def test_the_places_of_our_own_placements_are_their_names(name):
    model = nk.LanguageModel(vocab=16, dim=8, depth=4, heads=2, placement=name)
    found = Counter(site.path.rpartition(".")[2] for site in nk.inspect(model))
    places = Counter(site.place for site in nk.inspect(model))
    for place in ("pre", "out", "post"):
        assert places[place] == found[place], place
    assert places["final"] == found["norm"]
    # joined and split again, they cannot be told apart
    assert places["qk"] == found["query_norm"] + found["key_norm"] + found["value_norm"]


def test_readers_and_writers_are_named_by_their_weights():
    model, batch = hugging_face.build("llama")
    found = nk.inspect(model, batch)
    first, second = found["model.layers.0.input_layernorm"], found["model.layers.0.post_attention_layernorm"]
    layer = "model.layers.0"
    assert set(first.readers) == {f"{layer}.self_attn.{n}_proj.weight" for n in "qkv"}
    assert first.writers == ("model.embed_tokens.weight",)
    assert set(second.readers) == {f"{layer}.mlp.gate_proj.weight", f"{layer}.mlp.up_proj.weight"}
    assert set(second.writers) == {"model.embed_tokens.weight", f"{layer}.self_attn.o_proj.weight"}
    assert found["model.norm"].readers == ("lm_head.weight",)
    assert (first.branch, second.branch) == ("attention", "feed_forward")
    assert first.block == layer
    assert "modeling_llama.py:" in first.line


class Gated(nn.Module):
    def __init__(self, before):
        super().__init__()
        self.weight, self.before, self.eps = nn.Parameter(torch.ones(8)), before, 1e-5

    def forward(self, x, gate):
        g = nn.functional.silu(gate)
        y = nn.functional.rms_norm(x * g if self.before else x, (8,), self.weight, self.eps)
        return y if self.before else y * g


@pytest.mark.parametrize("before", [True, False])
def test_a_gate_is_part_of_what_a_norm_computes(before):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), Gated(before)

        def forward(self, x):
            return self.norm(self.a(x), gate=self.b(x))

    (site,) = nk.inspect(Model(), torch.randn(2, 8))
    assert site.spec.gate == ("before" if before else "after")
    assert (site.spec.centered, site.spec.eps) == (False, 1e-5)


def test_functions_are_sites_too_and_are_found_by_what_they_compute():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x):
            h = nn.functional.layer_norm(x, (8,), eps=1e-6)
            q, k, v = self.qkv(h).chunk(3, -1)
            q, k = nn.functional.normalize(q, dim=-1), nn.functional.rms_norm(k, (8,))
            return x + self.out((q @ k.mT).softmax(-1) @ v)

    found = nk.inspect(Model(), torch.randn(2, 5, 8))
    assert [(s.path, s.place) for s in found] == [
        (":layer_norm", "pre"),
        (":normalize", "qk"),
        (":rms_norm", "qk"),
    ]
    assert [s.spec.centered for s in found] == [True, False, False]
    assert found[0].spec.eps == 1e-6


def test_a_norm_in_a_fused_call_of_ours_is_seen():
    model = nk.LanguageModel(vocab=16, dim=8, depth=2, heads=2, norm="rms")
    assert len(nk.inspect(model)) == 5


def test_it_prints_as_a_table_and_draws_itself():
    model, batch = hugging_face.build("gemma2")
    found = nk.inspect(model, batch)
    assert str(found).splitlines()[0] == "Gemma2ForCausalLM: 13 norms on 6 residual sums"
    assert "RMSNorm, eps 1e-06, 1 + w" in str(found)
    assert found.svg().startswith("<svg")
    assert "model.layers.0.input_layernorm" in found._repr_html_()
