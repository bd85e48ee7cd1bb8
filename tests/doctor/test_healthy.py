"""Precision: models that are well get neither an error nor a warning.

All architectures of Hugging Face that can be built small without a download, in evaluation and in training.
"""

import warnings

import hugging_face
import pytest
import torch
from torch import nn

import normkit as nk

# They are not well: a momentum in TensorFlow's convention, 0.99 and more, in BatchNorms that move.
INVERTED = {"align", "efficientnet", "mobilenet_v1", "mobilenet_v2"}
LEAST = 150


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # small models: on a busy machine, threads wait for each other
    yield
    torch.set_num_threads(before)


def said(report):
    return [(f.code, f.where, f.message) for f in report.findings if f.severity != "info"]


def test_there_are_enough_of_them():
    assert len(hugging_face.NAMES) >= LEAST


@pytest.mark.parametrize("name", hugging_face.NAMES)
def test_a_model_of_hugging_face_is_healthy(name):
    model, batch = hugging_face.build(name)
    assert said(nk.doctor(model, batch)) == []


@pytest.mark.parametrize("name", hugging_face.NAMES[::4])
def test_a_model_of_hugging_face_is_healthy_in_training(name):
    model, batch = hugging_face.build(name, training=True)
    # a batch of two is small for BatchNorm, and that is what it says
    found = said(nk.doctor(model, batch, ignore="NK301"))
    assert {code for code, *_ in found} == ({"NK305"} if name in INVERTED else set()), found


@pytest.mark.parametrize("name", sorted(INVERTED))
def test_the_four_models_with_an_inverted_momentum_are_found(name):
    model, batch = hugging_face.build(name, training=True)
    report = nk.doctor(model, batch, select="NK305")
    assert {f.code for f in report.findings} == {"NK305"}
    assert all(f.measured >= 0.99 for f in report.findings)


@pytest.mark.parametrize("name", nk.placement.PLACEMENTS)
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_our_own_models_are_healthy(name, norm):
    model = nk.LanguageModel(vocab=16, dim=8, depth=4, heads=2, placement=name, norm=norm)
    assert said(nk.doctor(model, torch.randint(16, (2, 7)))) == []


@pytest.mark.parametrize("norm_first", [True, False])
def test_torch_s_own_transformer_is_healthy(norm_first):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first)
    last = nn.LayerNorm(16) if norm_first else None
    model = nn.TransformerEncoder(layer, 3, norm=last, enable_nested_tensor=False)
    assert said(nk.doctor(model, torch.randn(2, 7, 16))) == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of nested tensors, which it does not use then
        both = nn.Transformer(16, 2, 2, 2, 32, batch_first=True, norm_first=norm_first)
    assert said(nk.doctor(both, (torch.randn(2, 7, 16), torch.randn(2, 5, 16)))) == []
