"""The pattern language: what it means, and what it says when it is wrong."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import normkit as nk
from normkit.functional import normalize
from normkit.pattern import Pattern


def by_hand(x, groups, eps=1e-5, center=True):
    """Normalise each set of positions by itself, in a plain loop: slow, and nothing to get wrong."""
    y = torch.empty_like(x)
    for group in groups.unique():
        values = x[groups == group]
        values = values - values.mean() if center else values
        y[groups == group] = values / torch.sqrt((values**2).mean() + eps)
    return y


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_numbers_share_a_mean_if_they_differ_in_bracketed_axes_alone(data):
    """Any rank, any brackets, any split, any layout in memory, against a loop over groups."""
    names = list("abcdef")
    text, shape, sizes, outside = [], [], {}, []
    for _ in range(data.draw(st.integers(1, 4))):
        factors = [(names.pop(0), data.draw(st.integers(1, 3)), data.draw(st.booleans()))]
        if data.draw(st.booleans()) and len(names) > 2:
            factors.append((names.pop(0), data.draw(st.integers(1, 3)), data.draw(st.booleans())))
        words = [f"[{n}]" if shared else n for n, _, shared in factors]
        text.append(words[0] if len(words) == 1 else f"({' '.join(words)})")
        shape.append(math.prod(s for _, s, _ in factors))
        sizes.update({n: s for n, s, _ in factors[:-1]} if len(factors) > 1 else {})
        outside.append(factors)
    if not any(shared for factors in outside for _, _, shared in factors):
        text[0] = f"[{text[0]}]"
        outside[0] = [(n, s, True) for n, s, _ in outside[0]]
    full = [s for factors in outside for _, s, _ in factors]
    index = torch.zeros(full, dtype=torch.long)
    for axis, (_, size, shared) in enumerate(f for factors in outside for f in factors):
        if not shared:
            steps = torch.arange(size).reshape([-1 if i == axis else 1 for i in range(len(full))])
            index = index * size + steps
    torch.manual_seed(0)
    order = data.draw(st.permutations(range(len(shape))))
    x = torch.randn([shape[i] for i in order], dtype=torch.float64).permute(
        sorted(range(len(order)), key=order.__getitem__)
    )
    center = data.draw(st.booleans())
    y = normalize(x, " ".join(text), center=center, **sizes)
    torch.testing.assert_close(y, by_hand(x, index.reshape(shape), center=center))


def test_an_ellipsis_stands_for_any_number_of_axes():
    x = torch.randn(2, 3, 4)
    assert torch.equal(normalize(x, "... [d]"), normalize(x, "a b [d]"))
    assert torch.equal(normalize(x, "[...] d"), normalize(x, "[a b] d"))
    assert torch.equal(normalize(x, "a [...] d"), normalize(x, "a [b] d"))
    assert torch.equal(normalize(x, "... a b [d]"), normalize(x, "a b [d]"))
    assert not normalize(torch.randn(4), "[...] d").any(), "a group of one number is that number less itself"


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_layout_in_memory_is_kept(layout):
    x = torch.randn(2, 8, 3, 5).contiguous(memory_format=layout)
    norm = nk.Norm("n (g [c]) [h w]", g=4, c=2)
    torch.testing.assert_close(norm(x), torch.nn.GroupNorm(4, 8)(x))
    assert norm(x).is_contiguous(memory_format=layout)


def test_group_norm_as_a_pattern_is_torchs():
    ours, theirs = nk.Norm("n (g [c]) [h w]", g=8, c=64), torch.nn.GroupNorm(8, 512)
    torch.nn.init.uniform_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 512, 3, 3)
    torch.testing.assert_close(ours(x), theirs(x))


AFFINE = [
    ("b l [d]", {"d": 6}, None, (6,)),
    ("[n] c [h w]", {"c": 4}, None, (4,)),
    ("n [c h w]", {"c": 4, "h": 2, "w": 3}, None, (4, 2, 3)),
    ("n (g [c]) [h w]", {"g": 2, "c": 3}, None, (6,)),
    ("n (g [c]) [h w]", {"g": 2, "c": 3}, "c", (3,)),
    ("n (g [c]) [h w]", {"g": 2, "c": 3}, "g", (2,)),
    ("n (g [c]) [h w]", {"g": 2, "c": 3, "h": 5}, ["c", "h", "g"], (6, 5)),
    ("n [c h w]", {"c": 4, "h": 2, "w": 3}, "c", (4,)),
]


@pytest.mark.parametrize(("pattern", "sizes", "affine", "shape"), AFFINE)
def test_parameters_lie_along_the_axes_that_are_named_or_sized(pattern, sizes, affine, shape):
    norm = nk.Norm(pattern, affine=affine, **sizes)
    assert norm.weight.shape == norm.bias.shape == shape
    full = {"n": 2, "b": 2, "l": 3, "h": 2, "w": 3, "c": 4, "d": 6} | sizes
    parsed = Pattern.parse(pattern)
    x = torch.randn([math.prod(full[f.name] for f in axis.factors) for axis in parsed.axes])
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    plain = normalize(x, pattern, **sizes)
    layout = parsed.layout(x.shape, sizes)
    broadcast = [s if n in norm.affine else 1 for n, s in zip(layout.names, layout.sizes, strict=True)]
    expected = plain.reshape(layout.sizes) * norm.weight.reshape(broadcast) + norm.bias.reshape(broadcast)
    torch.testing.assert_close(norm(x), expected.reshape(x.shape))


def test_a_norm_that_does_not_centre_has_no_bias_unless_asked():
    assert nk.Norm("b [d]", d=3, center=False).bias is None
    assert nk.Norm("b [d]", d=3, center=False, bias=True).bias is not None
    assert nk.Norm("b [d]", d=3, bias=False).bias is None
    assert nk.Norm("b [d]", affine=False).weight is None


def test_a_function_takes_parameters_for_the_bracketed_axes_or_those_named():
    x, weight = torch.randn(2, 3, 4), torch.randn(4)
    torch.testing.assert_close(normalize(x, "b l [d]", weight), normalize(x, "b l [d]") * weight)
    torch.testing.assert_close(normalize(x, "[b l] d", weight, affine="d"), normalize(x, "[b l] d") * weight)
    torch.testing.assert_close(normalize(x, "[b l] d", weight, d=4), normalize(x, "[b l] d") * weight)


def test_describe_counts_means_and_values():
    text = nk.describe("n (g [c]) [h w]", (2, 512, 7, 7), g=8)
    assert "16 means (2 n x 8 g), each over 3,136 values (64 c x 7 h x 7 w)" in text
    assert "numbers that differ only in c, h and w share one mean" in text
    assert "every n and g has a mean of its own" in text
    assert "a single mean for the whole input" in nk.describe("[a b]", (2, 3))
    assert "1 mean, each over 6 values" in nk.describe("[a b]", (2, 3))
    assert "root mean square" in nk.Norm("b [d]", d=4, center=False).describe((2, 4))
    assert "...0, ...1 and d" in nk.describe("[... d]", (2, 3, 4))
    assert "no two numbers share a mean" in nk.describe("[...] d", (5,))
    assert "2 means (2 x), each over 3 values (3 shape)" in nk.describe("x [shape]", (2, 3), x=2, shape=3)


MISTAKES = [  # pattern, column of the caret, words
    ("n [c", 2, "never closed"),
    ("n (g [c]", 2, "never closed"),
    ("n c]", 3, "was not opened"),
    ("n c) [d]", 3, "was not opened"),
    ("[n [c]]", 3, "a bracket inside a bracket"),
    ("(n (c)) [d]", 3, "a parenthesis inside a parenthesis"),
    ("n (g [c)]", 7, "cross"),
    ("n [(g c] h)", 7, "cross"),
    ("n [n]", 3, "stands twice"),
    ("... [...]", 5, "stands twice"),
    ("n [c!]", 3, "is not a name"),
    ("n [2]", 3, "is not a name"),
    ("n []", 2, "empty brackets"),
    ("n () [c]", 2, "empty parentheses"),
    ("n (... [c])", 3, "an ellipsis inside parentheses"),
    ("n [eps]", 3, "the name of an argument"),
]


@pytest.mark.parametrize(("pattern", "column", "words"), MISTAKES)
def test_a_bad_pattern_is_shown_with_a_caret_under_the_mistake(pattern, column, words):
    with pytest.raises(nk.NormkitError) as error:
        nk.Norm(pattern)
    first, shown, caret, fix = str(error.value).split("\n")
    assert words in first
    assert shown == f"  {pattern}"
    assert caret.index("^") == column + 2
    assert fix.startswith("  fix: ")


MISFITS = [
    ("b l [d]", {}, (2, 3), "expected: 3 axes"),
    ("b [d]", {}, (2, 3, 4), "write ... for the leading ones"),
    ("... b [d]", {}, (3,), "expected: at least 2 axes"),
    ("b [d]", {"d": 4}, (2, 3), "axis 1 to have size d=4; it has 3"),
    ("n (g [c])", {"g": 2}, (2, 7), "divisible by g=2; it has 7"),
    ("n (g [c])", {"g": 2, "c": 3}, (2, 7), "g=2, c=3, i.e. 6; it has 7"),
    ("n (g [c])", {}, (2, 6), "pass g=..."),
    ("b [d]", {"e": 4}, (2, 3), "a size for 'e'"),
    ("b [d]", {"d": 0}, (2, 3), "an integer of at least 1"),
    ("b [d]", {"d": 2.0}, (2, 3), "an integer of at least 1"),
    ("b d", {}, (2, 3), "for example 'b [d]'"),
    ("", {}, (2, 3), "has no brackets"),
]


@pytest.mark.parametrize(("pattern", "sizes", "shape", "words"), MISFITS)
def test_a_shape_that_does_not_fit_is_refused_with_its_axis(pattern, sizes, shape, words):
    with pytest.raises(nk.NormkitError) as error:
        normalize(torch.randn(shape), pattern, **sizes)
    assert words in str(error.value)
    assert repr(pattern) in str(error.value)


def test_the_caret_points_at_the_axis_that_does_not_fit():
    with pytest.raises(nk.NormkitError) as error:
        normalize(torch.randn(2, 7, 3, 3), "n (g [c]) [h w]", g=2)
    assert "  n (g [c]) [h w]\n    ^^^^^^^\n" in str(error.value)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: nk.Norm("b l [d]"), "pass d=..., or affine=False"),
        (lambda: nk.Norm("b l [d]", d=4, affine="l"), "pass l=..."),
        (lambda: nk.Norm("b l [d]", d=4, affine="e"), "one of 'b', 'l', 'd'"),
        (lambda: nk.Norm("n (g [c]) [h w]", g=4), "pass c=..., or affine=False"),
        (lambda: nk.Norm(5), "a pattern is a string"),
        (lambda: normalize(torch.randn(2, 3), "[n] c", torch.ones(3)), 'affine="c"'),
        (lambda: normalize(torch.randn(2, 8, 3), "n (g [c]) [l]", torch.ones(8), g=2), 'affine="g c"'),
        (lambda: normalize(torch.randn(2, 3), "n [c]", [1.0] * 3), "a weight of list"),
        (lambda: nk.describe("b [d]", 5), "a shape, such as"),
        (lambda: nk.describe("b [d]", (2, -1)), "a shape, such as"),
        (lambda: nk.describe(5, (2, 3)), "a pattern is a string"),
    ],
)
def test_a_norm_that_cannot_be_built_says_what_to_pass(build, words):
    with pytest.raises(nk.NormkitError) as error:
        build()
    assert words in str(error.value)
