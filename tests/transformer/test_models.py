"""The models: what a token may see, padding, packing, the cache, generation, and mistakes."""

import pytest
import torch

import normkit as nk
from normkit import NormkitError, functional
from normkit.placement import PLACEMENTS

SIZES = {"vocab": 50, "dim": 32, "depth": 4, "heads": 4, "context": 32}
OPTIONS = {
    "plain": {},
    "grouped queries": {"kv_heads": 2},
    "one head of keys": {"kv_heads": 1, "head_dim": 12},
    "learned positions": {"positions": "learned"},
    "sinusoids": {"positions": "sinusoidal"},
    "no positions": {"positions": "none"},
    "swiglu": {"activation": "swiglu", "bias": False, "norm": "rms"},
    "qk_norm": {"qk_norm": True},
    "parallel": {"parallel": True},
    "untied": {"tied": False},
    "embedding norm": {"embedding_norm": True, "placement": "post"},
}


def language_model(**options):
    torch.manual_seed(0)
    return nk.LanguageModel(**{**SIZES, **options}).double().eval()


def tokens(batch=2, length=9):
    return torch.randint(50, (batch, length), generator=torch.Generator().manual_seed(1))


def changed(ids, place):
    other = ids.clone()
    other[:, place] = (other[:, place] + 1) % 50
    return other


# ---- causality -----------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["layer", "rms", "batch", "power", "scale", "dyt", "none"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_later_token_changes_nothing_before_it(placement, norm):
    model, ids = language_model(placement=placement, norm=norm), tokens()
    a, b = model(ids), model(changed(ids, 5))
    assert torch.equal(a[:, :5], b[:, :5])
    if placement != "rezero":  # which starts as the identity
        assert not torch.equal(a[:, 5:], b[:, 5:])


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_causal(name):
    model, ids = language_model(**OPTIONS[name]), tokens()
    assert torch.equal(model(ids)[:, :5], model(changed(ids, 5))[:, :5])


def test_batch_norm_in_training_leaks_the_future():
    model, ids = language_model(norm="batch").train(), tokens()
    assert (model(ids)[:, :5] - model(changed(ids, 5))[:, :5]).abs().max() > 1e-3


def test_an_encoder_sees_everything():
    torch.manual_seed(0)
    model, ids = nk.Encoder(**SIZES).eval(), tokens()
    assert not torch.equal(model(ids)[:, :5], model(changed(ids, 5))[:, :5])


# ---- padding and packing -------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", OPTIONS)
def test_padding_changes_nothing(name, side, norm):
    model = language_model(**{"norm": norm, **OPTIONS[name]})
    model.train(norm == "batch")  # where a mask matters most; there is no dropout
    ids, real = tokens(1, 6), slice(3, 9) if side == "left" else slice(0, 6)
    padded, mask = torch.full((1, 9), 7), torch.zeros(1, 9, dtype=torch.bool)
    padded[:, real], mask[:, real] = ids, True
    torch.testing.assert_close(model(padded, mask=mask)[:, real], model(ids))


def test_padding_gets_no_nan_in_the_backward():
    model, ids = language_model(), tokens()
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :4] = False
    model.loss(ids, mask=mask).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("name", [n for n in OPTIONS if n != "no positions"])
def test_sequences_packed_into_a_row_do_not_see_each_other(name):
    model = language_model(**OPTIONS[name])
    first, second = tokens(1, 4), tokens(1, 7)
    packed = torch.cat([first, second], 1)
    segments = torch.tensor([[0] * 4 + [1] * 7])
    expected = torch.cat([model(first), model(second)], 1)
    torch.testing.assert_close(model(packed, segments=segments), expected)


def test_the_loss_leaves_out_padding_and_the_first_token_of_a_segment():
    model = language_model()
    first, second = tokens(1, 4), tokens(1, 7)
    packed, segments = torch.cat([first, second], 1), torch.tensor([[0] * 4 + [1] * 7])
    expected = (3 * model.loss(first) + 6 * model.loss(second)) / 9
    torch.testing.assert_close(model.loss(packed, segments=segments), expected)
    padded = torch.nn.functional.pad(first, (0, 3))
    mask = torch.arange(7)[None] < 4
    torch.testing.assert_close(model.loss(padded, mask=mask), model.loss(first))


# ---- cache and generation ------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_tokens_one_by_one_give_what_all_at_once_give(placement):
    model, ids = language_model(placement=placement), tokens()
    cache = model.cache(2)
    steps = [model(part, cache=cache) for part in ids.split([3, 1, 1, 4], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), model(ids))


@pytest.mark.parametrize("name", OPTIONS)
def test_generation_takes_the_likeliest_token(name):
    model, ids = language_model(**OPTIONS[name]), tokens(length=4)
    expected = ids
    for _ in range(6):
        expected = torch.cat([expected, model(expected)[:, -1:].argmax(-1)], 1)
    assert torch.equal(model.generate(ids, 6), expected)


def test_prompts_of_different_length_are_padded_on_the_left():
    model = language_model()
    short, long = tokens(1, 3), tokens(1, 6)
    both = torch.cat([torch.nn.functional.pad(short, (3, 0)), long])
    mask = torch.tensor([[False] * 3 + [True] * 3, [True] * 6])
    out = model.generate(both, 5, mask=mask)
    assert torch.equal(out[0, 3:], model.generate(short, 5)[0])
    assert torch.equal(out[1], model.generate(long, 5)[0])


def test_a_stopped_row_is_filled_up_and_all_stopped_end_it():
    model, ids = language_model(), tokens(1, 4)
    free = model.generate(ids, 6)
    stop = int(free[0, 5])
    out = model.generate(torch.cat([ids, tokens(1, 5)[:, 1:]]), 6, stop=stop)
    assert out[0, 5] == stop
    assert (out[0, 5:] == stop).all()
    first = int((free[0, 4:] == stop).nonzero()[0]) + 5
    assert model.generate(ids, 6, stop=stop).shape[1] == first


def test_sampling_follows_its_limits():
    model, ids = language_model(), tokens(1, 4).expand(400, 4)
    logits = model(ids[:1])[0, -1]
    draw = torch.Generator().manual_seed(0)
    top = set(model.generate(ids, 1, temperature=1.0, top_k=3, generator=draw)[:, -1].tolist())
    assert top <= set(logits.topk(3).indices.tolist())
    assert len(top) == 3
    odds, order = logits.softmax(-1).sort(descending=True)
    few = order[: int((odds.cumsum(-1) < 0.3).sum()) + 1].tolist()
    top = set(model.generate(ids, 1, temperature=1.0, top_p=0.3, generator=draw)[:, -1].tolist())
    assert top <= set(few)
    cold = model.generate(ids, 1, temperature=1e-3, generator=draw)[:, -1]
    assert (cold == logits.argmax()).all()


def test_generation_leaves_the_mode_as_it_was():
    model = language_model().train()
    model.generate(tokens(), 2)
    assert model.training


def test_seq2seq_generates_what_it_scores_highest():
    torch.manual_seed(0)
    model = nk.Seq2Seq(**SIZES, encoder_depth=2, positions="sinusoidal", placement="post").double().eval()
    source, target = tokens(2, 7), tokens(2, 2)
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    expected = target
    for _ in range(5):
        logits = model(source, expected, source_mask=mask)
        expected = torch.cat([expected, logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(model.generate(source, target, 5, source_mask=mask), expected)
    alone = model(source[1:, :4], target[1:])
    torch.testing.assert_close(model(source, target, source_mask=mask)[1:], alone)


# ---- how it is computed --------------------------------------------------------------------------


@pytest.mark.parametrize(("placement", "fused"), [("pre", 8), ("post", 8), ("peri", 8), ("deepnorm", 8)])
def test_a_residual_add_and_the_norm_after_it_are_one_call(placement, fused, monkeypatch):
    calls = []
    real = functional.add_layer_norm
    monkeypatch.setattr(functional, "add_layer_norm", lambda *a, **k: calls.append(1) or real(*a, **k))
    language_model(placement=placement)(tokens())
    assert len(calls) == fused  # two a layer


def test_checkpointing_gives_the_same_gradients():
    grads = []
    for checkpoint in (False, True):
        model = language_model(checkpoint=checkpoint).train()
        model.loss(tokens()).backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_dropout_drops_in_training_alone():
    model, ids = language_model(dropout=0.5), tokens()
    assert torch.equal(model(ids), model(ids))
    assert not torch.equal(model.train()(ids), model(ids))


def test_a_tied_head_is_the_embedding():
    model = language_model()
    assert model.head.weight is model.embedding.token.weight
    model = language_model(tied=False)
    assert model.head.weight is not model.embedding.token.weight


KEYS = """embedding.token.weight head.weight
stack.blocks.0.attention.fn.output.bias stack.blocks.0.attention.fn.output.weight
stack.blocks.0.attention.fn.qkv.bias stack.blocks.0.attention.fn.qkv.weight
stack.blocks.0.attention.pre.bias stack.blocks.0.attention.pre.weight
stack.blocks.0.feed_forward.fn.input.bias stack.blocks.0.feed_forward.fn.input.weight
stack.blocks.0.feed_forward.fn.output.bias stack.blocks.0.feed_forward.fn.output.weight
stack.blocks.0.feed_forward.pre.bias stack.blocks.0.feed_forward.pre.weight
stack.final.norm.bias stack.final.norm.weight"""


def test_the_names_of_weights_are_frozen():
    assert sorted(language_model(depth=1).state_dict()) == KEYS.split()


# ---- mistakes ------------------------------------------------------------------------------------

MODEL = nk.LanguageModel(**SIZES)
BAD = {
    "heads that do not divide": (lambda: nk.Encoder(vocab=9, dim=30, heads=4), "choose heads among 1, 2, 3"),
    "keys that do not divide": (lambda: nk.Encoder(vocab=9, heads=4, kv_heads=3), "kv_heads=3"),
    "an odd head": (lambda: nk.Encoder(vocab=9, head_dim=5), "even"),
    "an unknown option": (lambda: nk.Encoder(vocab=9, dropuot=0.1), "did you mean 'dropout'"),
    "no vocab": (lambda: nk.Encoder(), "vocab="),
    "half a layer": (lambda: nk.Encoder(vocab=9, depth=0.5), "depth= got 0.5"),
    "an unknown activation": (lambda: nk.Encoder(vocab=9, activation="swiglo"), "did you mean 'swiglu'"),
    "an unknown position": (lambda: nk.Encoder(vocab=9, positions="rotry"), "did you mean 'rotary'"),
    "an unknown placement": (lambda: nk.Encoder(vocab=9, placement="deepnrm"), "did you mean 'deepnorm'"),
    "an unknown norm": (lambda: nk.Encoder(vocab=9, norm="batchnorm"), "did you mean 'batch'"),
    "an eps for tanh": (lambda: nk.Encoder(vocab=9, norm="dyt", eps=1e-6), "a norm that has one"),
    "all dropped": (lambda: nk.Encoder(vocab=9, dropout=1.0), "below 1"),
    "a token out of range": (lambda: MODEL(torch.tensor([[3, 50]])), "got token 50"),
    "a token below 0": (lambda: MODEL(torch.tensor([[3, -1]])), "got token -1"),
    "too many tokens": (lambda: MODEL(torch.zeros(1, 33).long()), "context=33"),
    "words": (lambda: MODEL(["hello"]), "integers"),
    "vectors": (lambda: MODEL(torch.randn(2, 3)), "integers"),
    "one axis": (lambda: MODEL(torch.tensor([1, 2])), "(batch, length)"),
    "a mask too long": (lambda: MODEL(tokens(), mask=torch.ones(2, 10) > 0), "(2, 9)"),
    "a mask of numbers": (lambda: MODEL(tokens(), mask=torch.ones(2, 9)), "torch.bool"),
    "a prompt and too much": (lambda: MODEL.generate(tokens(), 30), "ask for 23 tokens"),
    "no prompt": (lambda: MODEL.generate(torch.zeros(1, 0).long(), 3), "at least one token"),
    "padding on the right": (
        lambda: MODEL.generate(tokens(), 3, mask=torch.arange(9).expand(2, 9) < 7),
        "on the left",
    ),
    "a cache in training": (lambda: MODEL(tokens(), cache=MODEL.cache(2)), "torch.no_grad()"),
    "a cold draw": (lambda: MODEL.generate(tokens(), 3, top_k=4), "temperature=1.0"),
    "no tokens to draw from": (lambda: MODEL.generate(tokens(), 3, temperature=1.0, top_k=0), "at least 1"),
    "a negative temperature": (lambda: MODEL.generate(tokens(), 3, temperature=-1.0), "0 (the likeliest"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_named(name):
    call, text = BAD[name]
    with pytest.raises(NormkitError) as error:
        call()
    assert text in str(error.value)


# ---- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["plain", "swiglu", "untied", "qk_norm"])
def test_a_model_comes_back_from_its_file(name, dtype, tmp_path):
    model = language_model(**OPTIONS[name]).to(dtype)
    model.save(tmp_path / "model.safetensors")
    again = nk.LanguageModel.load(tmp_path / "model.safetensors").eval()
    assert again.config == model.config
    assert torch.equal(again(tokens()), model(tokens()))
    assert (again.head.weight is again.embedding.token.weight) == model.config.tied
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_an_encoder_and_a_seq2seq_come_back_too(tmp_path):
    for model, call in (
        (nk.Encoder(**SIZES), lambda m: m(tokens())),
        (nk.Seq2Seq(**SIZES, encoder_depth=2), lambda m: m(tokens(), tokens())),
    ):
        model.save(tmp_path / "model.safetensors")
        assert torch.equal(call(type(model).load(tmp_path / "model.safetensors")), call(model))


def test_a_file_that_is_not_ours_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(NormkitError, match="cannot be read"):
        nk.Encoder.load(path)
    path.write_bytes(b"half a file")
    with pytest.raises(NormkitError, match="cannot be read"):
        nk.Encoder.load(path)
    MODEL.save(path)
    with pytest.raises(NormkitError, match="holds a LanguageModel"):
        nk.Encoder.load(path)
    before = path.read_bytes()
    odd = nk.LanguageModel(**SIZES, placement=nk.Placement(pre=True))
    with pytest.raises(NormkitError, match="no name"):
        odd.save(path)
    with pytest.raises(NormkitError, match="cannot be written"):
        MODEL.save(tmp_path / "nowhere" / "model.safetensors")
    assert path.read_bytes() == before


def test_a_head_that_came_apart_is_stored(tmp_path):
    model = language_model()
    model.head.weight = torch.nn.Parameter(torch.randn(50, 32).double())
    model.save(tmp_path / "model.safetensors")
    again = nk.LanguageModel.load(tmp_path / "model.safetensors").eval()
    assert torch.equal(again(tokens()), model(tokens()))


def test_weights_of_several_dtypes_come_back_as_they_were(tmp_path):
    model = language_model(norm="rms").bfloat16()
    model.stack.final.norm.float()
    model.save(tmp_path / "model.safetensors")
    again = nk.LanguageModel.load(tmp_path / "model.safetensors")
    assert {k: v.dtype for k, v in again.state_dict().items()} == {
        k: v.dtype for k, v in model.state_dict().items()
    }
