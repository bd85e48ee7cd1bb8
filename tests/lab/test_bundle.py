"""The part of plotly.js that the page carries: small, of the right version, and enough for all figures."""

import re
from pathlib import Path

import plotly.offline
import pytest

from normkit.lab.page import BUNDLE, HERE
from normkit.lab.studying import committed

BIGGEST = 2_000_000  # bytes; the whole of plotly.js has more than twice as many


@pytest.fixture(scope="module")
def text():
    return BUNDLE.read_text(encoding="utf-8")


def traces(text):
    """The kinds of traces that a bundle can draw."""
    return set(re.findall(r'moduleType:"trace",name:"(\w+)"', text))


def version(text):
    return tuple(map(int, re.search(r"v(\d+)\.(\d+)\.(\d+)", text[:200]).groups()))


def test_it_has_the_major_version_of_the_installed_plotly(text):
    assert version(text)[0] == version(plotly.offline.get_plotlyjs())[0]


def test_it_reads_the_typed_arrays_that_plotly_writes(text):
    import numpy as np
    import plotly.graph_objects as go

    assert '"bdata"' in go.Figure(go.Scatter(y=np.arange(3.0))).to_json()
    assert "bdata" in text  # tests/lab/test_page.py draws one


def test_it_is_small_and_keeps_its_licence(text):
    assert len(text) < BIGGEST
    assert "Licensed under the MIT license" in text[:300]
    assert "Permission is hereby granted" in (HERE / "plotly-cartesian.LICENSE.txt").read_text()


def test_it_cannot_end_the_script_that_it_stands_in(text):
    assert "</script" not in text.lower()


def test_it_draws_every_kind_of_trace_in_our_figures(text):
    lab = HERE.parent
    sources = "".join(path.read_text() for path in [*lab.glob("*figures.py"), *lab.glob("studies/*.py")])
    used = {
        n.lower() for n in re.findall(r"go\.(Heatmap|Bar|Scatter\w*|Box|Violin|Surface|Scatter3d)\b", sources)
    }
    used |= set(re.findall(r"\.add_(scatter\w*|bar|heatmap|box|violin|surface)\(", sources))
    assert {"scatter", "bar", "heatmap"} <= used
    assert used <= traces(text)
    drawn = {trace.type for result in committed().values() for f in result.figures for trace in f.data}
    assert drawn <= traces(text)


def test_wheels_carry_it():
    pattern = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '"lab/page/*.js"' in pattern
    assert '"lab/page/*.txt"' in pattern
