"""A model's file that is not what it says: one clear error, soon, and before anything is built."""

import json
import random
import struct
import time
from itertools import product

import pytest
import torch
from safetensors.torch import save_file

import normkit as nk
from normkit.errors import NormkitError

SIZES = {"vocab": 30, "dim": 16, "depth": 2, "heads": 2, "context": 16}
SOON = 5.0  # seconds; a header that is believed takes hours


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "model.safetensors"
    nk.LanguageModel(**SIZES, positions="learned").save(path)
    return path.read_bytes()


def parts(data):
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header, weights):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + weights


def described(data, change):
    """The file with another description; ``change`` gets the options, or gives the whole text."""
    header, weights = parts(data)
    found = json.loads(header["__metadata__"]["normkit"])
    other = change(found)
    header["__metadata__"]["normkit"] = other if isinstance(other, str) else json.dumps(found)
    return joined(header, weights)


def load(tmp_path, data, kind=nk.LanguageModel):
    """The error, or None; anything but a NormkitError is a failure of the test, and so is a long wait."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    start = time.monotonic()
    try:
        kind.load(path)
    except NormkitError as error:
        said = str(error)
        assert str(path) in said
        assert len(said) < 3000
        return said
    finally:
        assert time.monotonic() - start < SOON
    return None


ODD = [None, True, "", "x", -1, 0, 1, 3, 1.5, 10**7, 10**12, 2**63, 10**400, [], {}, [1], {"a": 1}]
ODD += [float("nan"), float("inf"), "[" * 10_000, "\0", "__class__", ["pre"], {"pre": True}]
# Values of options that no weight here depends on, or that are what the file has anyway.
HARMLESS = {
    **{"eps": [None, 1, 3, 1.5, 10**7, 10**12], "rope_theta": [1, 3, 1.5, 10**7, 10**12], "dropout": [0]},
    **{"checkpoint": [True], "bias": [True], "tied": [True], "heads": [1], "token_types": [0]},
    **{"kv_heads": [None], "head_dim": [None], "hidden": [None]},
}
OPTIONS = [
    *("vocab", "dim", "depth", "heads", "kv_heads", "head_dim", "hidden", "context", "placement", "norm"),
    *("eps", "positions", "rope_theta", "activation", "bias", "qk_norm", "parallel", "dropout", "tied"),
    *("embedding_norm", "token_types", "checkpoint", "unheard_of"),
]


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_cannot_be_is_refused_before_anything_is_built(name, sound, tmp_path):
    taken = [
        value
        for value in ODD
        if not load(tmp_path, described(sound, lambda found, v=value: found["options"].update({name: v})))
    ]
    assert [repr(v) for v in taken] == [repr(v) for v in HARMLESS.get(name, [])]


@pytest.mark.parametrize("name", OPTIONS[:-1])
def test_an_option_that_is_missing_is_its_default_or_refused(name, sound, tmp_path):
    load(tmp_path, described(sound, lambda found: found["options"].pop(name)))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "null",
            "3",
            "[]",
            "{}",
            '"x"',
            "{",
            "[" * 100_000,
            '{"a":' * 100_000,
            '{"model": 3, "options": {}}',
        ),
        '{"model": "LanguageModel"}',
        '{"model": "LanguageModel", "options": []}',
        '{"model": ["LanguageModel"], "options": {}}',
        '{"model": "LanguageModel", "options": {}}',
        '{"model": "LanguageModel", "options": {"depth": 1' + "0" * 5000 + "}}",
        '{"model": "\\u001b[2J", "options": {}}',
    ],
    ids=range(16),
)
def test_a_description_that_is_none_is_refused(text, sound, tmp_path):
    assert load(tmp_path, described(sound, lambda _: text)) is not None


def test_a_file_without_a_description_is_refused(sound, tmp_path):
    header, weights = parts(sound)
    for other in ({}, {"normkit_": "x"}):
        assert "no model of normkit" in load(tmp_path, joined({**header, "__metadata__": other}, weights))
    del header["__metadata__"]
    assert "no model of normkit" in load(tmp_path, joined(header, weights))


def weights_of(model):
    return {k: v.clone() for k, v in model.state_dict().items() if k != "head.weight"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda w: w.pop("stack.final.norm.bias"), "has no stack.final.norm.bias"),
        (lambda w: w.pop("embedding.token.weight"), "has no embedding.token.weight"),
        (lambda w: w.update(extra=torch.ones(2)), "has extra"),
        (lambda w: w.update({"stack.blocks.7.x": torch.ones(2)}), "depth"),
        (
            lambda w: w.update({"stack.final.norm.bias": torch.ones(3)}),
            "stack.final.norm.bias has the shape (3,)",
        ),
        (lambda w: w.update({"stack.final.norm.bias": torch.ones(16, dtype=torch.int32)}), "torch.int32"),
        (lambda w: w.update({"embedding.token.weight": torch.ones(30)}), "embedding.token.weight"),
        (lambda w: w.update({"head.weight": torch.ones(30, 16)}), "has head.weight"),
    ],
)
def test_weights_that_are_missing_odd_or_too_many_are_named(change, text, tmp_path):
    model = nk.LanguageModel(**SIZES)
    weights = weights_of(model)
    change(weights)
    model.save(tmp_path / "one")
    header, _ = parts((tmp_path / "one").read_bytes())
    save_file(weights, tmp_path / "two", metadata=header["__metadata__"])
    assert text in load(tmp_path, (tmp_path / "two").read_bytes())


def test_three_hundred_random_files_give_nothing_but_clear_errors(sound, tmp_path):
    chance = random.Random(0)
    refused = 0
    for k in range(300):
        data = bytearray(sound)
        if k % 3 == 0:
            data = data[: chance.randrange(len(data))]
        else:
            (length,) = struct.unpack("<Q", data[:8])
            for _ in range(chance.choice([1, 3, 30])):
                data[chance.randrange(8 + length if k % 3 == 1 else len(data))] = chance.randrange(256)
        refused += load(tmp_path, bytes(data)) is not None
    assert refused > 150


def test_pairs_of_odd_options_give_nothing_but_clear_errors(sound, tmp_path):
    chance = random.Random(1)
    pairs = chance.sample(list(product(OPTIONS, ODD, OPTIONS, ODD)), 300)
    for a, x, b, y in pairs:
        load(tmp_path, described(sound, lambda found, new={a: x, b: y}: found["options"].update(new)))


def test_a_seq2seq_and_an_encoder_are_looked_at_in_the_same_way(tmp_path):
    for model in (nk.Seq2Seq(**SIZES, encoder_depth=1), nk.Encoder(**SIZES)):
        model.save(tmp_path / "sound")
        data = (tmp_path / "sound").read_bytes()
        assert load(tmp_path, data, type(model)) is None
        for name in ("depth", "encoder_depth", "context"):
            for value in (0, 10**7, "x", 10**400):
                assert load(
                    tmp_path,
                    described(data, lambda found, n=name, v=value: found["options"].update({n: v})),
                    type(model),
                )


def test_a_table_of_positions_is_no_larger_than_the_model_deserves(tmp_path):
    for positions in ("rotary", "sinusoidal"):
        model = nk.LanguageModel(**SIZES, positions=positions)
        model.save(tmp_path / "sound")
        data = (tmp_path / "sound").read_bytes()
        assert load(tmp_path, described(data, lambda f: f["options"].update(context=4096))) is None
        assert "context" in load(tmp_path, described(data, lambda f: f["options"].update(context=10**10)))


@pytest.mark.parametrize("name", ["folder", "nul\0", "missing"])
def test_a_path_that_is_no_file_is_refused(name, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(NormkitError, match="cannot be read"):
        nk.LanguageModel.load(tmp_path / name)
