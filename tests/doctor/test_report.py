"""What a report says, and in which forms."""

import json

import pytest
import torch
from sick.batches import yolo
from sick.blocks import GPT
from sick.case import DIM, tokens
from sick.training import unet_block
from torch import nn

import normkit as nk
from normkit.doctor.rules import RULES
from normkit.errors import NormkitError

KEYS = {"code", "name", "severity", "where", "measured", "expected", "message", "fix", "line", "fixable"}


class Sick(GPT):
    """Two errors (NK102, NK204), a warning (NK106), some information (NK601)."""

    def __init__(self):
        super().__init__(final=nn.Identity)
        self.h[0].ln_1 = nn.LayerNorm(DIM, eps=True)
        self.surplus = nn.LayerNorm(DIM)
        self.inp = nn.Linear(DIM, DIM)

    def forward(self, idx):
        x = self.inp(self.wte(idx))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


@pytest.fixture
def report():
    return nk.doctor(Sick(), tokens())


def codes(report):
    return [f.code for f in report.findings]


def test_the_worst_comes_first(report):
    assert [f.severity for f in report.findings[:4]] == ["error", "error", "warning", "info"][
        : len(report.findings)
    ]
    assert set(codes(report)) >= {"NK102", "NK106", "NK204"}
    assert not report.ok


def test_json_has_every_field_of_every_finding(report):
    found = json.loads(report.to_json())
    assert found["ok"] is False
    assert found["model"] == "Sick"
    assert len(found["findings"]) == len(report.findings)
    for told, finding in zip(found["findings"], report.findings, strict=True):
        assert set(told) == KEYS
        for key in KEYS - {"fixable"}:
            assert told[key] == getattr(finding, key)
        assert told["fixable"] is finding.is_fixable


def test_json_of_a_healthy_model_is_ok():
    assert json.loads(nk.doctor(GPT(), tokens()).to_json())["ok"] is True


def test_print_shows_what_is_wrong_where_by_how_much_and_what_to_do(report):
    text = " ".join(str(report).split())
    for finding in report.findings:
        assert f"{finding.severity} {finding.code} {finding.name}" in text
        assert finding.where in text
        assert f"{finding.measured:.4g}" in text
        assert finding.fix.split()[0] in text
    assert text.endswith("not healthy: " + text.rpartition("not healthy: ")[2])


def test_information_is_no_disease():
    report = nk.doctor(unet_block(True).eval(), torch.randn(8, 3, 8, 8))
    assert codes(report) == ["NK601", "NK601"]
    assert report.ok
    assert report.count("info") == 2


@pytest.mark.parametrize("select", ["NK1", "nk1", ["NK1"], "NK102,NK106", ("NK102", "NK106")])
def test_select_keeps_what_begins_so(select):
    found = codes(nk.doctor(Sick(), tokens(), select=select))
    assert sorted(found) == ["NK102", "NK106"]


def test_ignore_leaves_out_what_begins_so():
    found = codes(nk.doctor(Sick(), tokens(), ignore=["NK1", "NK601"]))
    assert found == ["NK204"]


def test_ignore_beats_select():
    assert codes(nk.doctor(Sick(), tokens(), select="NK1", ignore="NK102")) == ["NK106"]


@pytest.mark.parametrize("word", ["select", "ignore"])
def test_an_unknown_code_raises_with_the_closest(word):
    with pytest.raises(NormkitError, match="there is no rule 'NK801'") as error:
        nk.doctor(GPT(), tokens(), **{word: "NK801"})
    assert "NK101" in str(error.value)
    assert "did you mean NK" in str(error.value)


def test_an_unknown_code_is_refused_before_the_model_runs():
    class Never(nn.Module):
        def forward(self, x):
            raise AssertionError("it ran")

    with pytest.raises(NormkitError, match="no rule"):
        nk.doctor(Never(), torch.randn(2, 2), select="XY")


def test_assert_healthy_raises_with_the_report():
    nk.assert_healthy(yolo(0.1), torch.randn(8, 3, 8, 8))
    with pytest.raises(AssertionError, match="NK305 inverted-momentum"):
        nk.assert_healthy(yolo(0.9), torch.randn(8, 3, 8, 8))
    nk.assert_healthy(yolo(0.9), torch.randn(8, 3, 8, 8), ignore="NK305")


def test_codes_and_names_are_unique():
    assert len({r.code for r in RULES}) == len({r.name for r in RULES}) == len(RULES)
