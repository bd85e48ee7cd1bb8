"""Ours against what we did not write: Hugging Face's models and torch's own layer, with their weights."""

import pytest
import torch
import transformers
from torch import nn

import normkit as nk
from normkit import NormkitError
from normkit.placement import Stream
from normkit.transformer import Block, Config

SMALL = {"vocab_size": 99, "bos_token_id": 0, "eos_token_id": 98}
LLAMA = {
    **SMALL,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
MODELS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**SMALL, n_embd=32, n_layer=3, n_head=4, n_positions=64)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)),
    "llama, tied": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True)
    ),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**LLAMA, head_dim=16)),
}
# Hugging Face's tolerance is ours; float64 is exact but for the order of sums.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}


def drawn_anew(model):
    """Weights large enough that attention is not flat and norms are not the identity."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 1.0 if parameter.ndim < 2 else 0.0, 0.1)
    return model.eval()


def widened(model):
    """Hugging Face takes the root mean square in float32 even of a float64 model, which is off by 4e-7."""
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            parent, _, own = name.rpartition(".")
            exact = nn.RMSNorm(len(module.weight), eps=module.variance_epsilon).double()
            exact.weight = module.weight
            setattr(model.get_submodule(parent), own, exact)
    return model


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_logits_are_hugging_faces(name, dtype):
    theirs = drawn_anew(MODELS[name]()).to(dtype)
    theirs = widened(theirs) if dtype == torch.float64 else theirs
    ours, tolerance = nk.LanguageModel.from_hf(theirs), TOLERANCES[dtype]
    ids = torch.randint(97, (3, 12))
    torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=0, atol=tolerance)
    mask = torch.arange(12)[None] >= torch.tensor([0, 4, 7])[:, None]
    positions = (mask.long().cumsum(-1) - 1).clamp_min(0)
    expected = theirs(ids, attention_mask=mask.long(), position_ids=positions).logits
    torch.testing.assert_close(ours(ids, mask=mask)[mask], expected[mask], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_generation_is_hugging_faces_token_for_token(name):
    theirs = drawn_anew(MODELS[name]())
    ours = nk.LanguageModel.from_hf(theirs)
    ids = torch.randint(97, (3, 12))
    mask = torch.arange(12)[None] >= torch.tensor([0, 4, 7])[:, None]
    expected = theirs.generate(
        ids, attention_mask=mask.long(), max_new_tokens=30, do_sample=False, pad_token_id=98
    )
    assert torch.equal(ours.generate(ids, 30, mask=mask, stop=98), expected)


@pytest.mark.parametrize("dtype", TOLERANCES)
@torch.no_grad()
def test_an_encoder_is_bert(dtype):
    config = transformers.BertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    theirs = drawn_anew(transformers.BertModel(config)).to(dtype)
    ours, tolerance = nk.Encoder.from_hf(theirs), TOLERANCES[dtype]
    ids, types = torch.randint(97, (3, 12)), torch.randint(2, (3, 12))
    torch.testing.assert_close(ours(ids), theirs(ids).last_hidden_state, rtol=0, atol=tolerance)
    mask = torch.arange(12)[None] < torch.tensor([12, 9, 5])[:, None]
    expected = theirs(ids, attention_mask=mask.long(), token_type_ids=types).last_hidden_state
    got = ours(ids, mask=mask, types=types)
    torch.testing.assert_close(got[mask], expected[mask], rtol=0, atol=tolerance)


def test_dropout_comes_along():
    assert nk.LanguageModel.from_hf(MODELS["gpt2"]()).config.dropout == 0.1


def test_gradients_are_hugging_faces():
    theirs = drawn_anew(MODELS["gpt2"]()).double()
    ours = nk.LanguageModel.from_hf(theirs)
    ids = torch.randint(97, (3, 12))
    ours.loss(ids).backward()
    theirs(ids, labels=ids).loss.backward()
    torch.testing.assert_close(ours.embedding.token.weight.grad, theirs.transformer.wte.weight.grad)


TINY_BERT = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
REFUSED = {
    "a model of another family": (lambda: nk.LanguageModel.from_hf(nn.Linear(2, 2)), "no config.model_type"),
    "an encoder for a language model": (
        lambda: nk.LanguageModel.from_hf(transformers.BertModel(transformers.BertConfig(**TINY_BERT))),
        "gpt2, llama, qwen3",
    ),
    "scaled rotary angles": (
        lambda: nk.LanguageModel.from_hf(
            transformers.LlamaForCausalLM(
                transformers.LlamaConfig(
                    **LLAMA, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
                )
            )
        ),
        "rope_type",
    ),
    "no head of its own": (
        lambda: nk.LanguageModel.from_hf(transformers.LlamaModel(transformers.LlamaConfig(**LLAMA))),
        "no weight lm_head.weight",
    ),
    "biases in some places": (
        lambda: nk.LanguageModel.from_hf(
            transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, attention_bias=True))
        ),
        "attention_bias",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_we_do_not_compute_is_refused(name):
    call, text = REFUSED[name]
    with pytest.raises(NormkitError) as error:
        call()
    assert text in str(error.value)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_block_is_torchs_encoder_layer(norm_first, activation):
    theirs = nn.TransformerEncoderLayer(32, 4, 64, 0.0, activation, batch_first=True, norm_first=norm_first)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, 1.0 if parameter.ndim < 2 else 0.0, 0.2)
    placement = "pre" if norm_first else "post"
    config = Config(vocab=1, dim=32, heads=4, hidden=64, depth=1, activation=activation, positions="none")
    ours = Block(config, placement, 0).double()
    theirs = theirs.double()
    names = {
        "attention.fn.qkv.weight": "self_attn.in_proj_weight",
        "attention.fn.qkv.bias": "self_attn.in_proj_bias",
    }
    for kind, own, norm in (
        ("attention", {"output": "self_attn.out_proj"}, "norm1"),
        ("feed_forward", {"input": "linear1", "output": "linear2"}, "norm2"),
    ):
        for part in ("weight", "bias"):
            names |= {f"{kind}.fn.{o}.{part}": f"{t}.{part}" for o, t in own.items()}
            names[f"{kind}.{placement}.{part}"] = f"{norm}.{part}"
    state = theirs.state_dict()
    ours.load_state_dict({o: state[t] for o, t in names.items()})
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    mask = torch.arange(7)[None] < torch.tensor([7, 4])[:, None]
    got = ours(Stream(x), mask, {"allowed": mask[:, None, None]}).total
    expected = theirs(x, src_key_padding_mask=~mask)
    torch.testing.assert_close(got[mask], expected[mask], rtol=0, atol=1e-10)
