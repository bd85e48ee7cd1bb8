"""Recall: each rule finds real bugs, re-created in tests/sick, and is silent about the repaired twins."""

import functools
import math
import re
from collections import Counter
from pathlib import Path

import hugging_face
import pytest
import torch
from sick import CASES
from torch import nn

import normkit as nk
from normkit.doctor.rules import RULES, rule_of

HERE = Path(__file__).parents[1]
EACH = [
    pytest.param(case, training, id=f"{case.code}-{case.name}-{'training' if training else 'evaluation'}")
    for case in CASES
    for training in case.modes
]
OF_PROCESSES = {"NK707"}  # tests/doctor/test_ranks.py
CLINIC = ("gpt2", "bert", "llama", "gemma2", "t5", "vit", "resnet", "swinv2", "mamba")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # small models: on a busy machine, threads wait for each other
    yield
    torch.set_num_threads(before)


@functools.cache
def examined(case, training, *, healthy=False):
    model = case.model(training, healthy=healthy)
    return nk.doctor(model, case.inputs(healthy=healthy), **case.given(model, healthy=healthy))


@pytest.mark.parametrize(("case", "training"), EACH)
def test_a_sick_model_is_found_where_it_is_sick(case, training):
    report = examined(case, training)
    found = [f for f in report.findings if f.code == case.code]
    assert found
    if case.where is not None:
        assert {f.where for f in found} == set(case.where.split(" "))
    paths = {name for name, _ in report.inspection.model.named_modules()}
    paths |= {
        name for name, _ in case.model(training, healthy=True).named_modules()
    }  # a norm that is missing
    assert {f.where.partition(":")[0] for f in found} <= paths
    rule = rule_of(case.code)
    assert {f.severity for f in found} == {case.severity or rule.severity}
    assert {f.name for f in found} == {rule.name}


@pytest.mark.parametrize(("case", "training"), EACH)
def test_a_finding_has_a_number_and_says_what_to_do(case, training):
    found = [f for f in examined(case, training).findings if f.code == case.code]
    for finding in found:
        assert isinstance(finding.measured, float)
        assert math.isfinite(finding.measured)
        for text in (finding.expected, finding.message, finding.fix):
            assert len(text) > 3
            assert not re.search(r"\bnan\b|\binf\b|None", text.replace("NaN or inf", "")), text


@pytest.mark.parametrize(("case", "training"), EACH)
def test_a_finding_points_to_the_line_that_calls_the_norm(case, training):
    report = examined(case, training)
    model = report.inspection.model
    for finding in (f for f in report.findings if f.code == case.code):
        file, _, number = finding.line.rpartition(":")
        assert bool(finding.line) == bool(case.line)
        if not finding.line:
            continue
        in_a_container = type(model) is nn.Sequential and file.endswith("torch/nn/modules/container.py")
        assert case.line in file or in_a_container
        assert Path(file).read_text().splitlines()[int(number) - 1].strip()
        if case.line == "tests" and not in_a_container:
            assert Path(file).is_relative_to(HERE)


@pytest.mark.parametrize(("case", "training"), EACH)
def test_the_repaired_twin_is_clean(case, training):
    found = examined(case, training, healthy=True).findings
    bad = [f for f in found if f.code == case.code or f.severity != "info"]
    assert [(f.code, f.where, f.message) for f in bad] == []


def test_every_rule_has_two_sick_models_at_least():
    count = Counter(case.code for case in CASES)
    assert {rule.code for rule in RULES if count[rule.code] < 2} == OF_PROCESSES
    assert len({(case.code, case.name) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_has_a_page(rule):
    page = rule.page
    assert page.startswith(f"{rule.code} {rule.name} ({rule.severity})\n")
    for section in ("What it finds:", "Why it matters:", "Fix:"):
        assert len(page.split(f"\n{section}")) == 2, section
        assert page.split(f"\n{section}")[1].strip()


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", CLINIC)
def test_well_known_models_are_clean(name, training):
    model, batch = hugging_face.build(name, training=training)
    # a batch of two is small for BatchNorm, and that is what it says
    found = nk.doctor(model, batch, ignore="NK301" if training else ()).findings
    assert [(f.code, f.where) for f in found if f.severity != "info"] == []


@pytest.mark.parametrize("placement", nk.placement.PLACEMENTS)
def test_every_placement_is_clean_with_an_optimizer_and_a_loss(placement):
    model = nk.LanguageModel(vocab=16, dim=8, depth=3, heads=2, placement=placement)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    found = nk.doctor(
        model,
        torch.randint(16, (2, 7)),
        optimizer=torch.optim.AdamW(groups),
        loss=lambda output: output.float().square().mean(),
    ).findings
    assert [(f.code, f.where) for f in found if f.severity != "info"] == []
