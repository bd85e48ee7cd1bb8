"""The figures of a comparison: one look an arm, honest bands, marks where a point is not where it was."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from lab.folders import ABOUT, OUTCOME

from normkit.lab.comparison import Comparison
from normkit.lab.figure_style import COLOURS, arm_styles
from normkit.lab.loss_figures import BANDS, CLIPPED, edges, lowest, matter
from normkit.lab.measuring import ENDINGS
from normkit.lab.page.content import HEADINGS, content
from normkit.lab.run import Run
from normkit.lab.sweep import compare_settings


@pytest.fixture(scope="module")
def wild(tmp_path_factory):
    """Twelve arms; the largest learning rate is too large for any of them."""
    settings = {
        **{"task": "lab.own_task:Small", "norm": "layer,rms,dyt,none", "placement": "pre,post,peri"},
        **{"lr": "1e-3,1e-2,1e3", "seeds": 2},
    }
    out = tmp_path_factory.mktemp("wild") / "runs"
    return compare_settings(settings, "normkit compare", out=out, workers=0, progress=False)


def made(**changes):
    """Two norms, two seeds and one learning rate, all with the same outcome."""
    runs = [Run(norm=norm, seed=seed) for norm in ("layer", "rms") for seed in (0, 1)]
    about = {**ABOUT, "budget": None}
    return Comparison(about, [(run, replace(OUTCOME, **changes)) for run in runs], Path())


def looks(figure, label):
    """Colours, dashes and markers of an arm in a figure, marks and bands aside."""
    own = [t for t in figure.data if t.legendgroup == label and t.meta is None]
    return (
        {t.line.color for t in own if t.line.color} | {t.marker.color for t in own if t.marker.color},
        {t.line.dash for t in own if t.line.dash},
        {t.marker.symbol for t in own if t.marker.symbol},
    )


def test_an_arm_has_the_same_colour_dash_and_marker_in_every_figure(wild):
    styles = arm_styles(wild.summary.arms)
    for arm in wild.summary.arms:
        style = styles[arm.label]
        for name in ("learning rate", "loss curves", "throughput"):
            colours, dashes, markers = looks(wild.figures[name], arm.label)
            assert colours == {style.color}
            assert dashes <= {style.dash}
            assert markers <= {style.symbol}


@pytest.mark.parametrize("count", [3, 24, 100])
def test_no_two_arms_look_the_same(wild, count):
    first = wild.summary.arms[0]
    arms = [replace(first, label=f"arm {k}", values={"norm": f"norm {k}"}) for k in range(count)]
    assert len(set(arm_styles(arms).values())) == count


def test_with_two_things_that_differ_a_placement_is_a_colour(wild):
    styles = arm_styles(wild.summary.arms)
    assert len({style.color for style in styles.values()}) == 3 < len(COLOURS)
    for arm in wild.summary.arms:
        for other in wild.summary.arms:
            same = styles[arm.label].color == styles[other.label].color
            assert same == (arm.values["placement"] == other.values["placement"])


def test_only_arms_that_matter_have_a_band_and_the_others_on_demand(wild):
    bands = [t for t in wild.figures["learning rate"].data if t.meta == "band"]
    shown = [t.legendgroup for t in bands if t.visible is None]
    assert 1 <= len(shown) <= BANDS
    assert set(shown) <= set(matter(wild.summary))
    assert wild.summary.arms[0].label == matter(wild.summary)[0]
    assert len(bands) == len(wild.summary.arms)
    assert [t.showlegend for t in bands if t.visible == "legendonly"].count(True) == 1


def test_a_band_stays_inside_of_what_a_loss_can_be(wild):
    bands = [t for t in wild.figures["learning rate"].data if t.meta == "band"]
    assert any(min(t.y) == 0 for t in bands)  # two seeds: some interval reaches below
    assert all(0 <= y <= wild.summary.plateau + 1e-9 for t in bands for y in t.y)


def test_a_loss_that_may_be_negative_is_not_cut_at_zero(wild):
    summary = wild.summary
    arm = summary.arms[0]
    assert lowest(summary) == 0
    point = replace(arm.best, losses=dict.fromkeys(arm.best.losses, -1.0))
    below = replace(summary, arms=(replace(arm, points=(point,)), *summary.arms[1:]))
    assert lowest(below) == -math.inf
    assert edges(arm, arm.best, -math.inf)[0] == pytest.approx(arm.best.loss.mean - arm.best.loss.half)


def test_clipped_points_are_marked_and_the_legend_says_what_it_means(wild):
    figure = wild.figures["learning rate"]
    marked = {t.legendgroup: list(t.x) for t in figure.data if t.meta == "clipped"}
    diverged = {arm.label for arm in wild.summary.arms if arm.points[-1].diverged}
    assert diverged
    assert all(1e3 in marked[label] for label in diverged)
    assert [t.name for t in figure.data if t.meta == "note"] == [CLIPPED]


def test_without_clipped_points_nothing_is_marked():
    figure = made().figures["learning rate"]
    assert not [t for t in figure.data if t.meta in ("clipped", "note")]


def test_names_of_baselines_keep_apart():
    baselines = {"unigram": 3.0, "bigram": 2.99, "trigram": 2.98}
    figure = made(baselines=baselines, floor=2.98).figures["loss curves"]
    names = {a.text: a for a in figure.layout.annotations}
    assert set(names) == set(baselines)
    scale = (figure.layout.height - 66) / (3.0 - 2.5) / 1.1
    heights = sorted(a.y * scale + a.yshift for a in names.values())
    assert all(b - a > 13 for a, b in pairwise(heights))


def test_with_one_learning_rate_the_loss_is_drawn_by_arm():
    result = made()
    assert result.figures["learning rate"].layout.xaxis.title.text.startswith("held-out loss")
    titles = [column["title"] for column in content(result)["arms"]["columns"]]
    assert not {"Learning rate", "Largest stable", "Sensitivity"} & set(titles)


@pytest.mark.parametrize("memory", [None, 12.0])
def test_columns_that_nothing_fills_are_left_out_and_so_is_their_note(memory):
    costs = content(made(peak_mb=memory))["costs"]
    assert ("Peak MB" in [column["title"] for column in costs["columns"]]) == (memory is not None)
    assert any("Peak MB" in note for note in costs["notes"]) == (memory is not None)


def test_columns_that_are_the_same_in_all_runs_are_said_once(wild):
    runs = content(wild)["runs"]
    titles = [column["title"] for column in runs["columns"]]
    assert titles[:2] == ["norm", "placement"]
    assert {"learning rate", "seed", "ended", "final loss"} <= set(titles)
    assert not {"depth", "width", "batch size", "leak"} & set(titles)
    for k, title in enumerate(titles):
        assert len({row[k]["text"] for row in runs["rows"]}) > 1, title


def test_how_runs_ended_is_said_in_the_words_of_the_lab(wild):
    said = content(wild)["endings"]
    assert "diverged" in said
    assert all(ENDINGS[word] == meaning for word, meaning in said.items() if word != "leaks")


def test_every_state_of_an_answer_has_a_heading():
    from normkit.lab.answer import STATES

    assert set(HEADINGS) == set(STATES)
