"""The drawing of a model: every norm is there once, layers alike are counted, and words are words."""

import re
import xml.etree.ElementTree as ElementTree

import hugging_face
import pytest
import torch
from torch import nn

import normkit as nk
from normkit.inspect.drawing import draw, shown
from normkit.inspect.outline import outline

NAME = "{http://www.w3.org/2000/svg}"


class Layer(nn.Module):
    """Two lanes that read one norm, as in GPT-J; or each its own, as in GPT-NeoX."""

    def __init__(self, shared=True, eps=1e-5):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(8, eps), None if shared else nn.LayerNorm(8)
        self.one, self.two = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

    def forward(self, x):
        first = self.norm(x)
        return x + self.one(first) + self.two(first if self.norm2 is None else self.norm2(x))


class Stack(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.final = nn.LayerNorm(8)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.final(x)


def inspect(model, batch=None):
    return nk.inspect(model.eval(), batch)


def words(svg):
    """What is written, and what is said of each norm."""
    root = ElementTree.fromstring(svg)
    return [e.text or "" for e in root.iter(f"{NAME}text")], [e.text for e in root.iter(f"{NAME}title")][1:]


def runs(found, marks=None):
    return [
        [(run.path, run.count, len(run.blocks)) for run in stream.runs]
        for stream in outline(found.sites, found.residuals, found.graph, marks or {})
    ]


@pytest.mark.parametrize("name", ["gpt2", "bert", "gemma2", "qwen3", "resnet", "t5", "swin", "gpt_neox"])
def test_layers_alike_are_drawn_once_and_every_kind_of_norm_is_there(name):
    model, batch = hugging_face.build(name)
    found = inspect(model, batch)
    texts, titles = words(found.svg())
    drawn = {re.sub(r"\d+", "*", title.partition(" · ")[0]) for title in titles}
    assert drawn == {re.sub(r"\d+", "*", site.path) for site in found}
    assert len(titles) < len(found) or len(found) < 4
    assert "× 3" in texts or "× 2" in texts or name == "swin"


def test_an_encoder_and_a_decoder_are_two_streams():
    model = nk.Seq2Seq(vocab=16, dim=8, depth=2, heads=2, placement="post")
    ids = torch.ones(1, 3, dtype=torch.long)
    found = inspect(model, (ids, ids))
    assert runs(found) == [[("encoder.blocks.*", 2, 1)], [("decoder.blocks.*", 2, 1)]]


def test_a_sum_that_is_taken_in_the_next_layer_belongs_to_the_one_that_works():
    model = nk.LanguageModel(vocab=16, dim=8, depth=3, heads=2, placement="peri")
    assert runs(inspect(model)) == [[("stack.blocks.*", 3, 1), ("", 1, 1)]]


def test_what_alternates_is_drawn_once_too():
    model = Stack(*(Layer(eps=1e-5 if k % 2 else 1e-6) for k in range(6)))
    assert runs(inspect(model, torch.randn(2, 8))) == [[("layers.*", 3, 2), ("", 1, 1)]]


def test_a_norm_with_a_mark_is_drawn_with_its_layer_apart_and_in_colour():
    found = inspect(Stack(*(Layer() for _ in range(4))), torch.randn(2, 8))
    marks = {"layers.2.norm": ("error", "NK101")}
    assert runs(found, marks) == [[("layers.*", 2, 1), ("layers.2", 1, 1), ("layers.3", 1, 1), ("", 1, 1)]]
    svg = draw(found.sites, found.residuals, found.graph, marks)
    assert words(svg)[0].count("NK101") == 1
    assert svg.count("#b42318") == 1
    assert "#b42318" not in found.svg()


@pytest.mark.parametrize(
    ("shared", "norms"), [(True, ["norm", "final"]), (False, ["norm", "norm2", "final"])]
)
def test_lanes_of_one_sum_are_drawn_side_by_side_with_their_norms(shared, norms):
    found = inspect(Stack(Layer(shared), Layer(shared)), torch.randn(2, 8))
    texts, titles = words(found.svg())
    assert [t for t in texts if t in ("norm", "norm2", "final")] == norms
    assert len(titles) == len(norms)
    assert texts.count("feed-forward") == 2


def test_norms_without_a_stream_stand_in_a_row_and_no_norm_is_said():
    parts = [p for _ in range(3) for p in (nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))]
    texts, titles = words(inspect(nn.Sequential(*parts), torch.randn(2, 3, 4, 4)).svg())
    assert texts == ["BN", "*  × 3"]
    assert len(titles) == 1
    assert words(inspect(nn.Linear(2, 2), torch.randn(2, 2)).svg())[0] == ["no norm, and no residual sum"]


def test_many_kinds_of_layers_are_cut_off_and_counted():
    model = Stack(*(Layer(eps=1e-5 + k * 1e-7) for k in range(70)))
    assert "… and 11 more layers of other kinds" in words(inspect(model, torch.randn(2, 8)).svg())[0]


def test_nothing_overlaps_and_all_is_inside():
    row = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4, 1e-6), nn.RMSNorm(4))
    for model, batch in (
        hugging_face.build("gemma2"),
        hugging_face.build("resnet"),
        (row, torch.randn(2, 4)),
    ):
        root = ElementTree.fromstring(inspect(model, batch).svg())
        width, height = float(root.get("width")), float(root.get("height"))
        pills = [
            tuple(float(e.get(k)) for k in ("x", "y", "width", "height"))
            for e in root.iter(f"{NAME}rect")
            if e.get("fill") != "currentColor"
        ]
        for k, (x, y, w, h) in enumerate(pills):
            assert 0 <= x <= width - w
            assert 0 <= y <= height - h
            for x2, y2, w2, h2 in pills[:k]:
                assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


def test_names_of_any_kind_are_text():
    name = "<script>\x1b\u202e&"
    model = nn.Sequential()
    model.add_module(name, nn.LayerNorm(4))
    svg = inspect(model, torch.randn(2, 4)).svg()
    assert words(svg)[0] == ["LN", r"<script>\x1b\u202e&"]
    assert shown(name) == r"&lt;script&gt;\x1b\u202e&amp;"
