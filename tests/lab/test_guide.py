"""docs/which-norm.md: what it says follows from the rows, what it links to is there, and its code runs."""

import copy
import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import normkit as nk
from normkit.errors import NormkitError
from normkit.lab.design import Rule, all_studies
from normkit.lab.studying import StudyResult

DOCS = Path(__file__).parent.parent.parent / "docs"
WITHDRAWN = [
    *("46.5 times", "quick start", "helps less than is said", "LayerNorm Scaling raises"),
    *("LayerNorm Scaling does not raise", "choose a norm by its cost", "two images did no harm"),
]


def _module():
    found = importlib.util.spec_from_file_location("guide", DOCS / "guide.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


GUIDE = _module()
DATA = GUIDE.tomllib.loads((DOCS / "situations.toml").read_text(encoding="utf-8"))


def made_up(values, seeds=4, **bounds):
    """A result of the study ``numerics`` with one rule, ``one-pass``, whose effect is these values."""
    rule = Rule(
        *("one-pass", "Wrong above 2", lambda rows: rows.get("value")),
        **(bounds or {"above": 2.0}),
        unit="times",
        yes="It is wrong by {effect}.",
        no="It is right, by {effect}.",
    )
    study = replace(
        all_studies()["numerics"], rules=(rule,), runs=(), cells=({},), seeds=seeds, scale="a toy"
    )
    rows = [{"seed": seed, "value": value} for seed, value in enumerate(values)]
    return {"numerics": StudyResult(study, rows, {})}


def data_about(rule):
    shown = {"rule": rule, "about": "one pass", "yes": "wrong by {effect}", "no": "right"}
    situation = {**DATA["situation"][0], "cell": [shown], "measured": [rule]}
    return {"situation": [situation], "quick_answer": [], "recipe": DATA["recipe"]}


def page_of(values, **options):
    return GUIDE.guide(made_up(values, **options), data_about("numerics.one-pass"))


def first_row(page):
    return next(line for line in page.splitlines() if line.startswith("| [LLM"))


def visible(cell):
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).strip()


def test_the_guide_is_what_the_results_say():
    assert (DOCS / "which-norm.md").read_text(encoding="utf-8") == GUIDE.guide()


def test_the_verdict_of_a_rule_chooses_its_sentence():
    wrong, right = page_of([3.2, 3.3, 3.4, 3.3]), page_of([0.5, 0.6, 0.7, 0.8])
    assert (
        "- It is wrong by 3.3 times (3.2 to 3.4).\n\n*A toy; 4 seeds.* [Rows](../results/v1/numerics.json)"
        in wrong
    )
    assert "It is right" not in wrong
    assert "It is right, by 0.65 times" in right
    assert "one-pass" not in wrong[wrong.index("## What could not be decided") :]
    assert ": wrong by 3.3 times |" in first_row(wrong)
    assert ": right |" in first_row(right)


def test_what_a_rule_leaves_open_stands_at_the_end():
    page = page_of([1.0, 2.0, 3.0, 2.5])
    assert "[numerics.one-pass]" in page[page.index("## What could not be decided") :]
    assert "It is wrong" not in page
    assert ": undecided |" in first_row(page)


def test_a_study_that_is_not_complete_says_so():
    few = page_of([3.1, 3.2, 3.3], seeds=8)
    assert "Being measured: run `normkit study numerics`." in few
    assert "It is wrong" not in few
    assert "| not yet |" in first_row(few)


def test_without_any_rows_it_says_how_to_measure():
    page = GUIDE.guide({})
    assert "../results" not in page
    for name, study in all_studies().items():
        assert f"Being measured: run `normkit study {name}{' --long' if study.is_long else ''}`." in page


@pytest.mark.parametrize("rule", ["numerics.no-such", "no-such.rule"])
def test_a_rule_that_does_not_exist_is_listed(rule):
    with pytest.raises(NormkitError, match=rf"no rule {rule}"):
        GUIDE.guide({}, data_about(rule))


def test_a_study_under_no_heading_is_listed(monkeypatch):
    monkeypatch.delitem(GUIDE.HEADINGS, "Attention")
    with pytest.raises(NormkitError, match="qk-norm is under 0 headings"):
        GUIDE.guide({})


def test_every_link_leads_somewhere():
    page = GUIDE.guide()
    titles = re.findall(r"^#+ (.*)$", page, flags=re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\(#([^)]*)\)", page)) <= {*anchors}
    for target in re.findall(r"\]\(([^#)]+)\)", page):
        assert (DOCS / target).exists(), target


def test_the_first_screen_can_be_scanned():
    rows = [line for line in GUIDE.guide().splitlines() if line.startswith("| [")][:8]
    assert [visible(row.split("|")[1]).lower() for row in rows] == [
        item["name"].lower() for item in DATA["situation"]
    ]
    assert len(rows) == 8
    for row in rows:
        cells = [visible(cell) for cell in row.strip("|").split("|")]
        assert len(cells) == 6
        assert max(map(len, cells)) <= 80, cells


@pytest.mark.parametrize("results", [None, {}])
def test_what_was_withdrawn_does_not_come_back(results):
    page = GUIDE.guide(results)
    assert [text for text in WITHDRAWN if text in page] == []


def _texts(item):
    if isinstance(item, str):
        return [item]
    values = item.values() if isinstance(item, dict) else item if isinstance(item, list) else []
    return [text for value in values for text in _texts(value)]


SNIPPETS = sorted({code for text in _texts(DATA) for code in re.findall(r"`(nk\.[^`]+)`", text)})
OPTIONS = sorted(
    {code for text in _texts(DATA) for code in re.findall(r"`((?:norm|placement|qk_norm|bias)=[^`]+)`", text)}
)


class Recurrent(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gru = nn.GRU(dim, dim, batch_first=True)

    def forward(self, x):
        return self.gru(x)[0]


def names_in(code):
    """What the names of a snippet stand for."""
    if "center_to_rms" in code:
        model = nk.LanguageModel(vocab=16, dim=32, depth=2, heads=4, norm="layer", placement="pre")
        return {"nk": nk, "model": model, "batch": torch.randint(16, (2, 8))}
    conv = nn.Conv2d(3, 64, 3, bias=False)
    model = nn.Sequential(conv, nk.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.randn(4, 3, 8, 8)
    return {
        **{"nk": nk, "C": 64, "dim": 32, "cond": 16, "layer": Recurrent(32)},
        **{"model": model, "original": copy.deepcopy(model), "batch": images, "loader": [images]},
    }


def test_there_is_code_to_try():
    assert len(SNIPPETS) >= 15
    assert len(OPTIONS) >= 8


@pytest.mark.parametrize("code", SNIPPETS)
def test_its_code_runs(code):
    made = eval(code, names_in(code))
    inputs = {"nk.Residual": (2, 5, 32), "nk.RMSNorm": (2, 5, 32), "nk.GroupNorm": (2, 64, 4, 4)}
    shape = inputs.get(code.partition("(")[0])
    if shape is not None and "(" in code:
        assert made(torch.randn(shape)).shape == shape


@pytest.mark.parametrize("code", OPTIONS)
def test_its_options_are_options_of_a_language_model(code):
    options = eval(f"dict({code})")
    model = nk.LanguageModel(vocab=16, dim=32, depth=2, heads=4, **options)
    assert model(torch.randint(16, (2, 8))).shape == (2, 8, 16)


def test_the_recipe_can_be_built():
    with torch.device("meta"):
        model = eval(DATA["recipe"]["code"], {"nk": nk})
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
    norms = [module for module in model.modules() if isinstance(module, nk.RMSNorm)]
    assert len(norms) == 12 * 4 + 1  # attention, its queries and keys, feed-forward; and the last one


def test_the_citation_has_the_version_of_the_package():
    text = (DOCS.parent / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {nk.__version__.partition('+')[0]}\n" in text
    assert "http" not in text
    assert "doi" not in text.lower()
