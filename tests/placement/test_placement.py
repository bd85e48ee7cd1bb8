"""A placement is a value: it prints, compares, draws, and says what is wrong with it."""

import functools
import xml.etree.ElementTree as ET
from itertools import product

import pytest
import torch
from torch import nn

import normkit as nk
from normkit import NormkitError
from normkit.placement import (
    PLACEMENTS,
    DepthFormula,
    Learned,
    Placement,
    Residual,
    Stream,
    draw,
    encoder_decoder_placements,
    placement_at,
)

PRINTED = {
    "post": "x <- N(x + F(x))",
    "pre": "x <- x + F(N(x)); final N",
    "peri": "x <- x + N(F(N(x))); final N",
    "deepnorm": "x <- N((2L)^1/4·x + F(x)); initial weights times (8L)^-1/4",
    "rezero": "x <- x + α·F(x)",
    "lns": "x <- x + F(l^-1/2·N(x)); final N",
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_placement_prints_its_formula(name):
    assert str(PLACEMENTS[name]) == PRINTED[name]


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_row_of_the_table_has_a_source_and_prints(name):
    row = PLACEMENTS[name]
    assert "arXiv:" in row.source
    assert "x <-" in str(row)


def test_a_placement_is_a_frozen_value():
    assert Placement(pre=True) == Placement(pre=True)
    assert len({Placement(pre=True), Placement(pre=True), Placement()}) == 2
    with pytest.raises(AttributeError):
        Placement().pre = True


def test_numbers_may_depend_on_the_place():
    rule = Placement(
        skip=DepthFormula("l/L", lambda layer, depth: layer / depth), gate=Learned(lambda layer, depth: layer)
    )
    at = rule.at(3, 4)
    assert (at.skip, at.gate) == (0.75, Learned(3.0))
    block = Residual(nn.Linear(4, 4), 4, rule, layer=3, depth=4)
    assert block.gate.item() == 3
    x = torch.randn(2, 4)
    torch.testing.assert_close(block(x), 0.75 * x + 3 * block.fn(x))


def test_a_function_gives_each_kind_its_own():
    def where(layer, depth, kind):
        return Placement(pre=kind == "attention", post=kind != "attention")

    assert placement_at(where, 1, 2, "attention").pre
    assert placement_at(where, 1, 2, "feed_forward").post


def test_an_encoder_and_its_decoder_have_numbers_of_their_own_in_deepnorm():
    encoder, decoder = encoder_decoder_placements("deepnorm", 6, 12)
    assert encoder.skip == pytest.approx(0.81 * (6**4 * 12) ** (1 / 16))
    assert encoder.gain == pytest.approx(0.87 * (6**4 * 12) ** (-1 / 16))
    assert (decoder.skip, decoder.gain) == (pytest.approx(36**0.25), pytest.approx(144**-0.25))
    assert encoder_decoder_placements("pre", 6, 12) == ("pre", "pre")


def groups_of_two(dim):
    return nk.GroupNorm(dim // 2, dim, axis=-1)


@pytest.mark.parametrize("norm", ["layer", "rms", "batch", "power", "scale", "dyt", "none", groups_of_two])
@pytest.mark.parametrize("name", ["pre", "post", "peri", "output"])
def test_any_norm_goes_into_any_place(name, norm):
    block = Residual(nn.Linear(6, 6), 6, name, norm)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    x = torch.randn(2, 5, 6, requires_grad=True)
    y = block(x, mask=mask)
    assert y.shape == x.shape
    y.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_batch_norm_leaves_padding_out():
    block = Residual(nn.Linear(6, 6), 6, "pre", "batch")
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    x = torch.randn(2, 5, 6)
    other = torch.where(mask[..., None], x, 1e4)
    torch.testing.assert_close(block(x, mask=mask)[mask], block(other, mask=mask)[mask])


def test_a_class_or_a_partial_is_a_norm():
    block = Residual(nn.Linear(6, 6), 6, "pre", functools.partial(nk.LayerNorm, eps=0.5))
    assert block.pre.eps == 0.5
    assert type(Residual(nn.Linear(6, 6), 6, "pre", nk.RMSNorm).pre) is nk.RMSNorm


def test_hooks_of_a_norm_are_called():
    block = Residual(nn.Linear(6, 6), 6, "post")
    seen = []
    block.post.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    block(torch.randn(2, 6))
    assert seen == [(2, 6)]


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_placement_can_be_drawn(name, tmp_path):
    figure = draw(name)
    root = ET.fromstring(figure)
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    rule = placement_at(name, 1, 12, "attention")
    assert texts.count("N") == rule.pre + rule.out + rule.post
    assert texts.count("F") == 1
    assert texts.count("+") == 1 + rule.dual
    figure.save(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text(encoding="utf-8") == figure._repr_svg_()


OWN = {
    "one's own": Placement(pre=True, gate=Learned(0.0), skip=0.5),
    "with a formula": Placement(post=True, skip=DepthFormula("l<L & 2", lambda layer, depth: 2.0)),
    "with a function": Placement(out=True, skip=lambda layer, depth: 1 / depth),
    **PLACEMENTS,
}


@pytest.mark.parametrize("name", OWN)
def test_a_notebook_shows_a_placement_as_its_drawing(name):
    found = OWN[name]._repr_svg_()
    assert type(found) is str
    assert ET.fromstring(found).tag == "{http://www.w3.org/2000/svg}svg"
    assert found == draw(OWN[name] if isinstance(OWN[name], Placement) else name)


def test_another_placement_is_another_drawing():
    drawn = {
        Placement(pre=pre, out=out, post=post)._repr_svg_() for pre, out, post in product([0, 1], repeat=3)
    }
    assert len(drawn) == 8
    assert PLACEMENTS["pre"]._repr_svg_() == PLACEMENTS["pre"].rule._repr_svg_()


def test_a_placement_is_written_as_one_would_type_it():
    for placement in (
        Placement(),
        Placement(pre=True, final=True),
        Placement(gate=Learned(0.0), inner="qkv"),
    ):
        assert eval(repr(placement)) == placement
    assert repr(Placement(pre=True, final=True)) == "Placement(pre=True, final=True)"
    formula = PLACEMENTS["deepnorm"].rule
    assert repr(formula).startswith("Placement(post=True, skip=DepthFormula(text='(2L)^1/4'), gain=")


BAD = {
    "an unknown name": (lambda: Residual(nn.Linear(4, 4), 4, "pree"), "did you mean 'pre'"),
    "an unknown norm": (lambda: Residual(nn.Linear(4, 4), 4, "pre", "layr"), "did you mean 'layer'"),
    "a module for a norm": (lambda: Residual(nn.Linear(4, 4), 4, "pre", nk.LayerNorm(4)), "pass the class"),
    "a word for a number": (lambda: Placement(skip="2"), "a number, or a function"),
    "an unknown inner norm": (lambda: Placement(inner="outputs"), "did you mean 'output'"),
    "a layer too many": (lambda: Residual(nn.Linear(4, 4), 4, layer=3, depth=2), "1 <= layer <= depth"),
    "inner norms in a plain layer": (lambda: Residual(nn.Linear(4, 4), 4, "subln"), "inside of the sublayer"),
    "a tensor for two streams": (lambda: Residual(nn.Linear(4, 4), 4, "dual")(torch.ones(4)), "Stream(x)"),
    "two streams without a norm": (lambda: Placement(dual=True), "post=True"),
    "a function that gives a word": (
        lambda: Residual(nn.Linear(4, 4), 4, Placement(skip=lambda layer, depth: "one")),
        "gave 'one'",
    ),
    "a function that gives no placement": (
        lambda: Residual(nn.Linear(4, 4), 4, lambda layer, depth, kind: "pre"),
        "-> Placement",
    ),
    "a number for a placement": (lambda: Residual(nn.Linear(4, 4), 4, 3), "-> Placement"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_named(name):
    call, text = BAD[name]
    with pytest.raises(NormkitError) as error:
        call()
    assert text in str(error.value)


def test_a_stream_is_its_sum():
    x = torch.randn(3)
    assert torch.equal(Stream(x).total, x)
    assert torch.equal(Stream(x, x).total, 2 * x)
