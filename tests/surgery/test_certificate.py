"""What a certificate says is so; what is not so gets none."""

import copy
import json

import pytest
import torch
from surgery.models import off, same_bits, state, trained
from torch import nn

from normkit import NormkitError, surgery
from normkit.inspect.edit import Edits
from normkit.surgery.changes import write
from normkit.surgery.operating import Plan, operate
from normkit.surgery.proving import BOUND, difference, prove
from normkit.surgery.subject import find_norms

x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))


def model():
    torch.manual_seed(0)
    return trained(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.RMSNorm(8), nn.Linear(8, 4)))


def test_it_lists_every_tensor_that_was_changed_with_its_norms():
    net = model()
    before = state(net)
    certificate = surgery.fold_affine(net, x)
    assert {t.name for t in certificate.tensors} == before.keys() - {"4.bias"}
    for change in certificate.tensors:
        assert change.before == pytest.approx(float(before[change.name].norm()), rel=1e-6)
        assert change.after == pytest.approx(float(net.state_dict()[change.name].norm()), rel=1e-6)
    assert certificate.before != certificate.after
    assert certificate.versions["torch"] == torch.__version__
    assert "float32[3, 5, 8]" in certificate.batch
    again = surgery.fold_affine(model(), x)
    assert (again.before, again.after) == (certificate.before, certificate.after), "hashes repeat"


def test_it_is_saved_as_json(tmp_path):
    path = surgery.fold_affine(model(), x).save(tmp_path / "new" / "surgery.json")
    data = json.loads(path.read_text())
    assert data["surgery"] == "fold_affine"
    assert data["error"] <= data["tolerance"] == BOUND
    assert len(data["tensors"]) == 6
    (tmp_path / "file").write_text("")
    with pytest.raises(NormkitError, match="could not be written"):
        surgery.fold_affine(model(), x).save(tmp_path / "file" / "surgery.json")


def wrong(target, factor):
    """A fold with a mistake: the reader takes up the gain times a factor."""
    gain = target[0].weight.detach().double().clone()
    return [
        write(target, "1.weight", "takes up the gain", lambda w: w * gain * factor),
        write(target, "0.weight", "becomes 1", torch.ones_like),
    ]


@pytest.mark.parametrize("factor", [1 + 1e-3, 1 + 1e-8])
def test_a_wrong_edit_gets_none_and_nothing_is_changed(factor):
    net = model()
    with torch.no_grad():
        net[0].bias.zero_()
    before = state(net)
    norms = find_norms(surgery_inspection(net))
    plan = Plan("wrong", lambda target: wrong(target, factor), [n for n in norms if n.path == "3"])
    with pytest.raises(NormkitError, match="not proven: the output differs by") as error:
        operate(net, x, plan)
    assert "not changed" in str(error.value)
    assert same_bits(before, net)


def surgery_inspection(net):
    import normkit as nk

    return nk.inspect(net, x)


def test_random_norms_tell_a_vacuous_edit_from_a_right_one():
    net = nn.Sequential(
        nn.LayerNorm(8), nn.Linear(8, 4)
    ).eval()  # gain 1, bias 0: forgetting them shows nothing
    norms = find_norms(surgery_inspection(net))
    assert not prove(net, x, norms, lambda t: [write(t, "0.weight", "becomes 1", torch.ones_like)]).holds
    assert prove(net, x, norms, lambda t: []).holds


class Single(nn.Module):
    """Its code knows float32 alone."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        if x.dtype != torch.float32:
            raise RuntimeError("float32, please")
        return self.linear(self.norm(x))


def test_where_float64_is_impossible_the_bound_is_twice_the_noise_floor():
    net = trained(Single())
    certificate = surgery.fold_affine(net, x)
    assert certificate.error > BOUND
    assert certificate.tolerance == pytest.approx(2 * certificate.floor)
    assert certificate.error <= certificate.tolerance < 1e-5


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("odd")])
def test_ctrl_c_and_a_failure_after_the_change_leave_the_model_as_it_was(monkeypatch, error):
    net = model()
    before = state(net)

    def fail(*_):
        assert not same_bits(before, net), "the change was made"
        raise error

    monkeypatch.setattr("normkit.surgery.operating.difference", fail)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else NormkitError
    with pytest.raises(expected):
        surgery.fold_affine(net, x)
    assert same_bits(before, net)


def test_an_edit_that_fails_in_the_middle_is_rolled_back():
    net = model()
    before = state(net)

    def fails(old):
        raise RuntimeError("no")

    edits = Edits([write(net, "1.weight", "a", torch.zeros_like), write(net, "4.weight", "b", fails)])
    with pytest.raises(RuntimeError, match="no"):
        edits.apply()
    assert same_bits(before, net)


def test_the_comparison_can_fail():
    a = {"y": torch.tensor([1.0, 2.0])}
    assert difference(a, a) == (0.0, "")
    assert difference(a, {"y": torch.tensor([1.0, 2.2])}) == (pytest.approx(0.1), "y")
    assert difference(a, {"y": torch.tensor([1.0, float("nan")])})[0] == float("inf")
    assert difference(a, {"y": torch.tensor([1.0])})[0] == float("inf")


def test_progress_is_told():
    said = []
    with surgery.progress(said.append):
        surgery.fold_affine(model(), x)
    assert said[0] == "following every number"
    assert "changing the model" in said
    net = model()
    old = copy.deepcopy(net)
    surgery.fold_affine(net, x)
    assert off(old, net, x) < 1e-6


class Reads(nn.Module):
    """A norm, something of one's own, a matrix."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.read, self.between = nn.LayerNorm(8), nn.Linear(8, 8), between
        trained(self)

    def forward(self, x):
        return self.read(self.between(x, self.norm(x)))


def masked(x, h):
    h = h.clone()
    h[x[..., 0] > 3] = 0
    return h


def written_behind_its_back(x, h):
    view = h.view(-1, 8)
    h.detach().mul_((x[..., :1] < 3).to(h))
    return view


@pytest.mark.parametrize(
    ("between", "words"),
    [
        (lambda x, h: h[..., x.mean((0, 1)).argsort()], "other values"),
        (lambda x, h: h * (2 if float(x.max()) > 3 else 1), "large values"),
        (masked, "large values"),
        (written_behind_its_back, "large values"),
        (lambda x, h: h.roll(x.shape[0], -1), "fewer rows"),
        (lambda x, h: h / x.shape[1], "fewer tokens"),
        (lambda x, h: nn.functional.pad(h, (0, 0, 0, 1)) if h.shape[1] < 5 else h, "fewer tokens"),
        (lambda x, h: torch.cat([h[:, :5], h[:, 5:] + 1], 1), "more tokens"),
    ],
    ids=["sorted", "scaled", "masked", "in place", "rolled", "by length", "padded", "late tokens"],
)
def test_what_holds_for_one_batch_alone_is_refused(between, words):
    net = Reads(between)
    before = state(net)
    with pytest.raises(NormkitError, match=f"of a batch with {words} differs by"):
        surgery.fold_affine(net, x.clamp(-2.9, 2.9))
    assert same_bits(before, net)
