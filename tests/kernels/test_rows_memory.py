"""Rows written where others lie: in place, over a term, past the cache; a refused call keeps nothing."""

import resource

import pytest
import torch

OPS = torch.ops.normkit
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DIMS = [1, 3, 8, 17, 37, 64, 123, 768]
KINDS = {"layer": 1, "rms": 0}


def call(dtype, dim, rows=11):
    torch.manual_seed(dim)
    x, residual = torch.randn(2, rows, dim).to(dtype)
    return x, residual, torch.rand(dim).to(dtype), torch.randn(dim).to(dtype)


@pytest.mark.parametrize("parameters", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_input_may_be_the_output(dtype, dim, kind, parameters):
    x, _, w, b = call(dtype, dim)
    given = (
        w if parameters else None,
        b if parameters and kind == "layer" else None,
        1,
        1e-5,
        KINDS[kind],
    )
    expected = OPS.rows(x, *given)
    OPS.rows_out(x, *given, x)
    assert torch.equal(x, expected)


@pytest.mark.parametrize(
    "into", [("new", "x"), ("new", "r"), ("x", "r"), ("r", "x"), ("x", "new"), ("r", "new")]
)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_terms_of_a_sum_may_be_its_outputs(dtype, dim, into):
    x, r, w, b = call(dtype, dim)
    given = (w, b, 1, 1e-5, 1)
    expected = OPS.rows_add(x, r, *given)
    places = {"x": x, "r": r, "new": torch.empty_like(x)}
    y, total = (places[place] for place in into)
    OPS.rows_add_out(x, r, *given, y, total)
    assert torch.equal(y, expected[0])
    assert torch.equal(total, expected[1])


def test_a_wide_stream_may_be_written_over_itself():
    x, r, w, b = call(torch.bfloat16, 37)
    r = r.float()
    expected = OPS.rows_add(x, r, w, b, 1, 1e-5, 1)
    y = torch.empty_like(x)
    OPS.rows_add_out(x, r, w, b, 1, 1e-5, 1, y, r)
    assert torch.equal(y, expected[0])
    assert torch.equal(r, expected[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_does_not_fit_into_the_cache_has_the_same_bits(dtype, kind):
    dim = 1024
    rows = 10 * 2**20 // (dim * torch.empty(0, dtype=dtype).element_size())
    x, r, w, b = call(dtype, dim, rows)
    given = (w, b if kind == "layer" else None, 1, 1e-5, KINDS[kind])
    expected = OPS.rows(x, *given)
    out, total = torch.empty_like(x), torch.empty_like(x)
    OPS.rows_out(x, *given, out)
    assert torch.equal(out, expected)
    some = slice(0, 100)
    OPS.rows_add_out(x, r, *given, out, total)
    few = OPS.rows_add(x[some], r[some], *given)
    assert torch.equal(out[some], few[0])
    assert torch.equal(total[some], few[1])
    OPS.rows_out(x, *given, x)
    assert torch.equal(x, expected), "in place"


def test_a_refused_call_keeps_nothing():
    x, w = torch.randn(5, 8), torch.rand(7)

    def megabytes():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    refused = [
        ("rows_out", lambda big: (x, w, None, 1, 1e-5, 1, big)),
        ("rows_add_out", lambda big: (x, x, w, None, 1, 1e-5, 1, big, big)),
        ("rows", lambda big: (big, w, None, 1, 1e-5, 1)),
        ("rows_backward", lambda big: (big, x, w, w, big, big, 1, 1e-5, 1, True, True, True)),
    ]
    for _ in range(2):
        torch.ones(4 * 2**20)
    before = megabytes()
    for name, arguments in refused:
        for _ in range(30):
            with pytest.raises(RuntimeError):
                getattr(OPS, name)(*arguments(torch.ones(4 * 2**20)))
    assert megabytes() - before < 200
