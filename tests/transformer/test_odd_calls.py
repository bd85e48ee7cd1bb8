"""Odd calls: empty, mixed, repeated, put together by hand; each gives the right numbers or a clear error."""

import pytest
import torch

import normkit as nk
from normkit import NormkitError
from normkit.transformer.generation import Sampling

SIZES = {"vocab": 50, "dim": 32, "depth": 4, "heads": 4, "context": 32}
MODEL = nk.LanguageModel(**SIZES)


def language_model(**options):
    torch.manual_seed(0)
    return nk.LanguageModel(**{**SIZES, **options}).double().eval()


def tokens(batch=2, length=9):
    return torch.randint(50, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal"])
def test_a_model_from_the_meta_device_gets_its_tables(positions):
    model = language_model(positions=positions).float()
    with torch.device("meta"):
        empty = nk.LanguageModel(**{**SIZES, "positions": positions})
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(model.state_dict())
    assert filled.head.weight is filled.embedding.token.weight
    assert torch.equal(filled.eval()(tokens()), model(tokens()))


@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal"])
def test_segments_and_padding_go_together(positions):
    model = language_model(positions=positions)
    first, second = tokens(1, 4), tokens(1, 3)
    packed = torch.nn.functional.pad(torch.cat([first, second], 1), (2, 0))
    mask = torch.arange(9)[None] >= 2
    segments = torch.tensor([[0] * 6 + [1] * 3])
    expected = torch.cat([model(first), model(second)], 1)
    torch.testing.assert_close(model(packed, mask=mask, segments=segments)[:, 2:], expected)


def test_a_segment_number_may_come_again():
    model = language_model()
    first, second = tokens(1, 4), tokens(1, 3)
    packed = torch.cat([first, second, first], 1)
    segments = torch.tensor([[0] * 4 + [1] * 3 + [0] * 4])
    expected = torch.cat([model(first), model(second), model(first)], 1)
    torch.testing.assert_close(model(packed, segments=segments), expected)


def test_every_module_keeps_its_mode():
    model = language_model().train()
    model.embedding.eval()
    model.generate(tokens(), 2)
    assert model.training
    assert not model.embedding.training
    pair = nk.Seq2Seq(**SIZES)
    with pytest.raises(NormkitError):
        pair.generate(tokens() + 99, tokens(), 2)
    assert pair.training


def test_no_tokens_give_no_logits():
    model = language_model()
    assert model(tokens()[:, :0]).shape == (2, 0, 50)
    assert model(tokens()[:0]).shape == (0, 9, 50)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_any_whole_number_is_a_token(dtype):
    model, ids = language_model(), tokens()
    assert torch.equal(model(ids.to(dtype)), model(ids))
    assert torch.equal(model.loss(ids.to(dtype)), model.loss(ids))
    assert torch.equal(model.generate(ids.to(dtype), 2), model.generate(ids, 2))


def test_a_float64_model_has_a_float64_loss():
    assert language_model().loss(tokens()).dtype == torch.float64


def test_dropout_drops_what_is_added():
    for placement in ("pre", "output"):
        block = nk.Residual(torch.nn.Linear(64, 64), 64, placement, dropout=0.5)
        share = (block(torch.zeros(50, 64)) == 0).float().mean()
        assert 0.4 < share < 0.6


def test_a_parallel_block_ends_as_its_attention_says():
    model = language_model(parallel=True, placement=lambda layer, depth, kind: RULES[kind])
    assert model.stack.final.norm is not None


RULES = {
    "attention": nk.Placement(pre=True, final=True),
    "cross_attention": nk.Placement(pre=True, final=True),
    "feed_forward": nk.Placement(post=True),
}


def test_a_norm_put_in_by_hand_works_and_hooks_are_called():
    model = language_model(qk_norm=True)
    model.stack.blocks[0].attention.fn.query_norm = nk.RMSNorm(8).double()
    model.stack.blocks[0].attention.pre = nk.BatchNorm1d(32, axis=-1).double().eval()
    seen = []
    model.stack.blocks[1].attention.pre.register_full_backward_pre_hook(lambda module, grad: seen.append(1))
    model.loss(tokens(), mask=torch.ones(2, 9) > 0).backward()
    assert seen == [1]


ALSO_BAD = {
    "statistics computed twice": (lambda: nk.Encoder(vocab=9, norm="batch", checkpoint=True), "twice"),
    "segments and a cache": (
        lambda: MODEL(tokens(), segments=torch.zeros(2, 9).long(), cache=MODEL.cache(2)),
        "segments= came with a cache",
    ),
    "segments too short": (lambda: MODEL(tokens(), segments=torch.zeros(2, 8).long()), "(2, 9)"),
    "a cache for others": (lambda: MODEL(tokens(), cache=MODEL.cache(3)), "a batch of 3"),
    "a list for a mask": (lambda: MODEL(tokens(), mask=[[True]]), "mask got list"),
    "types without a table": (lambda: nk.Encoder(**SIZES)(tokens(), types=tokens()), "token_types="),
    "a type too many": (lambda: nk.Encoder(**SIZES, token_types=2)(tokens(), types=tokens()), "types= got"),
    "nothing to predict": (lambda: MODEL.loss(tokens()[:, :1]), "nothing is to be predicted"),
    "all padding": (lambda: MODEL.loss(tokens(), mask=torch.zeros(2, 9) > 0), "nothing is to be predicted"),
    "some second streams": (
        lambda: nk.Encoder(
            vocab=9, placement=lambda layer, depth, kind: nk.Placement(post=True, dual=layer < 3)
        ),
        "dual= in all",
    ),
    "no encoder": (lambda: nk.Seq2Seq(vocab=9, encoder_depth=0), "depth= got 0"),
    "sources and targets": (lambda: nk.Seq2Seq(**SIZES)(tokens(2), tokens(1)), "2 sources and 1 targets"),
    "less than nothing": (lambda: MODEL.generate(tokens(), -20), "max_new_tokens= got -20"),
    "half a token": (lambda: MODEL.generate(tokens(), 2.0), "max_new_tokens= got 2.0"),
    "a dropout in words": (lambda: nk.Encoder(vocab=9, dropout="0.1"), "dropout= got '0.1'"),
    "no angle": (lambda: nk.Encoder(vocab=9, rope_theta=0), "rope_theta= got 0"),
    "a negative eps": (lambda: nk.Encoder(vocab=9, eps=-1.0), "eps= got -1.0"),
    "a function for a sublayer": (lambda: nk.Residual(lambda x: x, 8), "a torch.nn.Module"),
    "not a number": (lambda: nk.Placement(skip=float("nan")), "a number, or a function"),
}


@pytest.mark.parametrize("name", ALSO_BAD)
def test_these_mistakes_are_named_too(name):
    call, text = ALSO_BAD[name]
    with pytest.raises(NormkitError) as error:
        call()
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.01, {0}), (0.49, {0}), (0.51, {0, 1}), (0.79, {0, 1}), (0.81, {0, 1, 2}), (1.0, {0, 1, 2})],
)
def test_top_p_keeps_the_token_that_reaches_it(top_p, kept):
    """Of 0.5, 0.3 and 0.2, in any order: as many of the likeliest as it takes, with the last one."""
    odds = torch.tensor([0.5, 0.3, 0.2])
    for order in ([0, 1, 2], [2, 0, 1]):
        logits = odds[order].log().expand(400, 3)
        draw = Sampling(temperature=1.0, top_p=top_p, generator=torch.Generator().manual_seed(0))
        assert {order[k] for k in draw(logits).tolist()} == kept
