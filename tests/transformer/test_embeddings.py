"""An Encoder that reads embeddings in place of ids, and a Stack that counts positions by itself."""

import pytest
import torch

import normkit as nk
from normkit import NormkitError
from normkit.transformer import Cache, Config, Stack

SIZES = {"dim": 32, "depth": 2, "heads": 4, "context": 16}
OPTIONS = {
    "rotary": {},
    "learned": {"positions": "learned"},
    "sinusoidal": {"positions": "sinusoidal"},
    "none": {"positions": "none"},
    "an embedding norm": {"embedding_norm": True, "placement": "post"},
    "token types": {"token_types": 2, "positions": "learned"},
}


def encoder(vocab=50, **options):
    torch.manual_seed(0)
    return nk.Encoder(**{**SIZES, "vocab": vocab, **options}).double().eval()


def tokens(batch=2, length=9):
    return torch.randint(50, (batch, length), generator=torch.Generator().manual_seed(1))


def by_hand(model, ids):
    """What the table gives, as one would write it."""
    scale = 32**0.5 if model.config.positions == "sinusoidal" else 1.0
    return scale * model.embedding.token(ids)


# ---- embeddings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
def test_embeddings_give_what_their_ids_give(name):
    model, ids = encoder(**OPTIONS[name]), tokens()
    assert torch.equal(model(by_hand(model, ids)), model(ids))


@pytest.mark.parametrize("name", OPTIONS)
def test_embeddings_are_masked_packed_and_typed_as_ids_are(name):
    model, ids = encoder(**OPTIONS[name]), tokens()
    mask = torch.arange(9).expand(2, 9) >= torch.tensor([[0], [3]])
    segments = torch.tensor([[0] * 4 + [1] * 5] * 2)
    types = segments if "token_types" in OPTIONS[name] else None
    given = {"mask": mask, "segments": segments, "types": types}
    assert torch.equal(model(by_hand(model, ids), **given), model(ids, **given))


@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal"])
def test_an_encoder_without_a_table_still_knows_positions(positions):
    model = encoder(vocab=None, positions=positions)
    assert "embedding.token.weight" not in model.state_dict()
    x = torch.randn(1, 5, 32, dtype=torch.float64)
    assert not torch.allclose(model(x.flip(1)).flip(1), model(x))
    blind = encoder(vocab=None, positions="none")
    torch.testing.assert_close(blind(x.flip(1)).flip(1), blind(x))


def test_gradients_reach_what_made_the_embeddings():
    model, entry = encoder(vocab=None), torch.nn.Linear(3, 32).double()
    model(entry(torch.randn(2, 5, 3).double())).square().mean().backward()
    assert entry.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal"])
def test_an_encoder_without_a_table_comes_back_from_its_file(positions, tmp_path):
    model, x = encoder(vocab=None, positions=positions), torch.randn(2, 5, 32).double()
    model.save(tmp_path / "model.safetensors")
    again = nk.Encoder.load(tmp_path / "model.safetensors").eval()
    assert again.config == model.config
    assert torch.equal(again(x), model(x))


def test_a_file_without_a_table_cannot_lie_about_its_size(tmp_path):
    model = encoder(vocab=None)
    object.__setattr__(model.config, "dim", 10**6)
    model.save(tmp_path / "model.safetensors")
    with pytest.raises(NormkitError, match="for dim 1000000"):
        nk.Encoder.load(tmp_path / "model.safetensors")


def test_an_encoder_without_a_table_is_filled_from_the_meta_device():
    model = encoder(vocab=None, positions="sinusoidal").float()
    with torch.device("meta"):
        empty = nk.Encoder(**SIZES, vocab=None, positions="sinusoidal")
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(model.state_dict())
    x = torch.randn(2, 5, 32)
    assert torch.equal(filled.eval()(x), model(x))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the compiler's own
def test_embeddings_compile_in_one_graph():
    model, x = encoder(vocab=None).float(), torch.randn(2, 5, 32)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


def test_autocast_takes_embeddings_of_any_dtype():
    model = encoder(vocab=None).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.randn(2, 5, 32, dtype=torch.bfloat16)).shape == (2, 5, 32)


TABLED, BARE = encoder().float(), encoder(vocab=None).float()
BAD = {
    "ids without a table": (lambda: BARE(tokens()), "vocab=None got torch.int64 of shape (2, 9)"),
    "another width": (lambda: BARE(torch.randn(2, 9, 31)), "(batch, length, 32)"),
    "another width, with a table": (lambda: TABLED(torch.randn(2, 9, 31)), "(batch, length, 32)"),
    "one axis too few": (lambda: TABLED(torch.randn(2, 9)), "integers of shape (batch, length), or"),
    "one axis too many": (lambda: BARE(torch.randn(1, 2, 9, 32)), "(batch, length, 32)"),
    "ids of three axes": (lambda: TABLED(tokens()[..., None]), "(batch, length), or"),
    "words": (lambda: TABLED(["hello"]), "got list"),
    "complex numbers": (lambda: BARE(torch.randn(2, 9, 32) + 0j), "torch.complex64"),
    "float64 from numpy": (lambda: BARE(torch.randn(2, 9, 32).double()), "embeddings.to(torch.float32)"),
    "too many": (lambda: BARE(torch.randn(1, 17, 32)), "context=17"),
    "a mask that does not fit": (
        lambda: BARE(torch.randn(2, 9, 32), mask=torch.ones(2, 8) > 0),
        "torch.bool of shape (2, 9)",
    ),
    "segments that do not fit": (
        lambda: BARE(torch.randn(2, 9, 32), segments=tokens(2, 8)),
        "integers of shape (2, 9)",
    ),
    "a language model without tokens": (lambda: nk.LanguageModel(vocab=None), "scores tokens"),
    "a translator without tokens": (lambda: nk.Seq2Seq(vocab=None), "scores tokens"),
    "vectors for a language model": (
        lambda: nk.LanguageModel(**SIZES, vocab=50)(torch.randn(2, 9, 32)),
        "integers of shape (batch, length)",
    ),
    "no vocab at all": (lambda: nk.Encoder(dim=32), "vocab=None for an Encoder"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_named(name):
    call, text = BAD[name]
    with pytest.raises(NormkitError) as error:
        call()
    assert text in str(error.value)


# ---- positions of a stack ------------------------------------------------------------------------


def stack(causal=True, **options):
    torch.manual_seed(0)
    config = Config(**{**SIZES, "vocab": None, **options})
    return Stack(config, config.placement, causal=causal).double().eval()


@pytest.mark.parametrize("positions", ["rotary", "none"])
def test_a_stack_counts_positions_by_itself(positions):
    model, x = stack(positions=positions), torch.randn(2, 9, 32).double()
    assert torch.equal(model(x), model(x, positions=torch.arange(9)))


def test_a_stack_counts_on_from_its_cache():
    model, x = stack(), torch.randn(2, 9, 32).double()
    cache = Cache(2, 2, 4, 16, 8, dtype=torch.float64, device=x.device)
    with torch.no_grad():
        parts = [model(part, cache=cache) for part in x.split([4, 1, 4], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(x))


def test_a_stack_counts_from_the_first_real_token_and_anew_in_a_segment():
    model, x = stack(causal=False), torch.randn(1, 9, 32).double()
    mask = torch.arange(9)[None] >= 2
    torch.testing.assert_close(model(x, mask=mask)[:, 2:], model(x[:, 2:]))
    segments = torch.tensor([[0] * 4 + [1] * 5])
    expected = torch.cat([model(x[:, :4]), model(x[:, 4:])], 1)
    torch.testing.assert_close(model(x, segments=segments), expected)


def test_a_stack_names_a_sequence_that_is_too_long():
    with pytest.raises(NormkitError, match="context=17"):
        stack()(torch.randn(1, 17, 32).double())


@torch.no_grad()
def test_a_stack_counts_what_is_in_its_cache_when_it_names_one():
    model, x = stack(), torch.randn(1, 17, 32).double()
    roomy = Cache(2, 1, 4, 32, 8, dtype=torch.float64, device=x.device)
    model(x[:, :16], cache=roomy)
    with pytest.raises(NormkitError, match="context=17"):
        model(x[:, 16:], cache=roomy)
