"""Safe fixes: made, the finding is gone, what should stay the same does; undone, every bit is as before."""

import copy

import pytest
import torch
from sick import CASES, batches, numbers, parity, training
from sick.case import DIM, seeded, tokens
from torch import nn

import normkit as nk
from normkit.errors import NormkitError

HALF = torch.float16


def state(model):
    """All that a fix could change: classes, attributes that are no tensors, tensors."""
    modules = [
        (name, type(m), m.training, {k: v for k, v in vars(m).items() if not k.startswith("_")})
        for name, m in model.named_modules()
    ]
    tensors = {n: t.detach().clone() for n, t in (*model.named_parameters(), *model.named_buffers())}
    return modules, tensors


def assert_same(before, after):
    assert before[0] == after[0]
    assert before[1].keys() == after[1].keys()
    assert all(torch.equal(before[1][n], after[1][n]) for n in before[1])


def codes(report):
    return {f.code for f in report.findings}


def fixed(model, batch, code, **options):
    """The model, fixed; the edits; what it was before; the outputs before and after."""
    report = nk.doctor(model, batch, select=code, **options)
    assert codes(report) == {code}
    assert all(f.is_fixable for f in report.findings)
    before, expected = state(model), output(model, batch)
    edits = report.fix()
    assert len(edits) == len(report.findings)
    assert codes(nk.doctor(model, batch, select=code, **options)) == set()
    return edits, before, expected, output(model, batch)


@torch.no_grad()
def output(model, batch):
    with torch.random.fork_rng(devices=[]):
        return copy.deepcopy(model)(batch)


@pytest.mark.parametrize("code", ["NK201", "NK202"])
@pytest.mark.parametrize("training", [False, True])
def test_statistics_move_to_float32(code, training):
    model, batch = seeded(lambda: numbers.half_gpt(lambda: numbers.Narrow(1e-8))).train(training), tokens()
    edits, before, expected, got = fixed(model, batch, code)
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)  # float16, rounded at another place
    assert {type(m) for m in model.modules()} > {nk.RMSNorm}
    zero = torch.zeros(1, 2, DIM, dtype=HALF)
    assert model.ln_f(zero).isfinite().all()
    large = model.ln_f(torch.full((1, DIM), 500.0, dtype=HALF))
    torch.testing.assert_close(large, torch.ones(1, DIM, dtype=HALF))
    edits.undo()
    assert_same(before, state(model))
    assert not model.ln_f(zero).isfinite().all()


def test_two_findings_with_one_cure_are_cured_once():
    model, batch = seeded(lambda: numbers.half_gpt(lambda: numbers.Narrow(1e-8))), tokens()
    before, report = state(model), nk.doctor(model, batch)
    assert codes(report) == {"NK201", "NK202"}
    edits = report.fix()
    assert len(edits) == len(report.findings) / 2 == 5
    assert nk.doctor(model, batch).ok
    edits.undo()
    assert_same(before, state(model))


IMAGES = numbers.half(4, 3, 8, 8)


@pytest.mark.parametrize(
    ("code", "build", "batch"),
    [
        ("NK201", numbers.mlp, numbers.half()),
        ("NK202", numbers.mlp, numbers.half()),
        ("NK201", numbers.vae, IMAGES),
    ],
)
def test_a_norm_that_is_none_of_ours_gets_a_cast(code, build, batch):
    model, batch = seeded(lambda: build(False)), batch()
    edits, before, expected, got = fixed(model, batch, code)
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)
    assert isinstance(model[1], before[0][2][1])
    edits.undo()
    assert_same(before, state(model))


def test_a_frozen_batch_norm_stops():
    model, batch = seeded(lambda: batches.Transfer(False)).train(), torch.randn(8, 3, 8, 8)
    edits, before, _, _ = fixed(model, batch, "NK303")
    kept = [t.clone() for t in model.backbone.buffers()]
    model(batch)
    assert all(torch.equal(a, b) for a, b in zip(kept, model.backbone.buffers(), strict=True))
    assert model.training
    assert model.backbone[2].training
    edits.undo()
    assert_same(before, state(model))
    model(batch)
    assert not torch.equal(kept[0], model.backbone[1].running_mean)


def test_norms_get_a_group_without_decay_and_training_goes_on():
    model, batch = seeded(numbers.GPT), tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    model(batch).float().square().mean().backward()
    optimizer.step()
    groups = [dict(g) for g in optimizer.param_groups]
    moments = {id(p): dict(s) for p, s in optimizer.state.items()}
    edits, _, expected, got = fixed(model, batch, "NK501", optimizer=optimizer)
    assert torch.equal(got, expected)
    decayed, spared = optimizer.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert spared["lr"] == decayed["lr"] == 1e-3
    norms = {id(p) for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()}
    assert {id(p) for p in spared["params"]} == norms
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))
    assert {id(p): dict(s) for p, s in optimizer.state.items()} == moments
    optimizer.step()
    edits.undo()
    assert len(optimizer.param_groups) == 1
    assert optimizer.param_groups[0]["params"] == groups[0]["params"]


@pytest.mark.parametrize("mode", [False, True])
@pytest.mark.parametrize("build", [training.unet_block, training.cycle_gan])
def test_a_bias_that_vanishes_is_dropped(build, mode):
    model, batch = seeded(lambda: build(True)).train(mode), torch.randn(8, 3, 8, 8)
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
    edits, before, expected, got = fixed(model, batch, "NK601")
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert model[0].bias is None
    edits.undo()
    assert_same(before, state(model))
    assert torch.equal(output(model, batch), expected)


@pytest.mark.parametrize(("mine", "theirs"), [(parity.Raw, parity.Unit), (parity.Unit, parity.Raw)])
def test_a_gain_is_shifted_to_the_other_convention(mine, theirs):
    model, reference, batch = parity.gemma(mine), parity.gemma(theirs), tokens()
    expected = reference(batch)
    assert not torch.allclose(model(batch), expected, atol=1e-3)
    report = nk.doctor(model, batch, reference=reference, select="NK701")
    before = state(model)
    edits = report.fix()
    torch.testing.assert_close(model(batch), expected)
    edits.undo()
    assert_same(before, state(model))


def test_a_gain_that_was_converted_is_not_shifted_again():
    """The numbers differ by 1 already: nobody knows what else was done to them."""
    model, reference = parity.gemma(parity.Raw), parity.gemma(parity.Unit)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")):
                p += 1
    report = nk.doctor(model, tokens(), reference=reference, select="NK701")
    assert [f for f in report.findings if f.is_fixable] == []


def test_edits_that_are_made_are_not_made_again():
    model, batch = training.unet_block(True), torch.randn(8, 3, 8, 8)
    edits = nk.doctor(model, batch, select="NK601").fix()
    with pytest.raises(NormkitError, match="have been applied"):
        edits.apply()


SAFE = {"NK201", "NK202", "NK303", "NK501", "NK601", "NK701"}


@pytest.mark.parametrize("case", [c for c in CASES if c.code not in SAFE], ids=lambda c: f"{c.code}-{c.name}")
def test_what_is_not_safe_is_left_to_its_author(case):
    mode = case.modes[-1]
    model = case.model(mode)
    report = nk.doctor(model, case.inputs(), select=case.code, **case.given(model))
    assert not any(f.is_fixable for f in report.findings)
    before = state(model)
    assert len(report.fix()) == 0
    assert_same(before, state(model))
