"""Edits: read, applied all or none, verified, undone."""

import pytest
import torch
from torch import nn

import normkit as nk
from normkit.errors import NormkitError
from normkit.inspect.edit import Edit, Edits, set_attribute


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))


def test_a_failing_edit_takes_the_others_back():
    net = model()
    edits = Edits([set_attribute(net[1], "1", "eps", 1.0), Edit("0", "fails", lambda: 1 / 0)])
    with pytest.raises(ZeroDivisionError):
        edits.apply()
    assert net[1].eps == 1e-5
    assert not edits.applied


def test_verify_undoes_what_changes_the_outputs():
    net, x = model(), torch.randn(8, 4)
    with pytest.raises(NormkitError, match=r"change the outputs by .* they were undone"):
        Edits([set_attribute(net[1], "1", "eps", 1.0)]).verify(net, x)
    assert net[1].eps == 1e-5
    kept = Edits([set_attribute(net[1], "1", "eps", 1e-5 * (1 + 1e-9))])
    assert kept.verify(net, x) < 1e-6
    assert kept.applied


def test_a_second_apply_and_an_undo_of_nothing_are_refused():
    edits = Edits([])
    with pytest.raises(NormkitError, match="not applied"):
        edits.undo()
    edits.apply()
    with pytest.raises(NormkitError, match="have been applied"):
        edits.apply()


def test_a_swap_is_undone_by_class_attribute_and_fast_path():
    net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    before = (
        [type(m) for m in net.modules()],
        [sorted(vars(m)) for m in net.modules()],
        net.activation_relu_or_gelu,
    )
    report = nk.swap(net)
    assert type(net.norm1) is nk.LayerNorm
    report.undo()
    after = (
        [type(m) for m in net.modules()],
        [sorted(vars(m)) for m in net.modules()],
        net.activation_relu_or_gelu,
    )
    assert after == before


def test_a_swap_by_a_rule_is_undone_with_its_hooks():
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8))
    old, calls = net[1], []
    old.register_forward_hook(lambda *_: calls.append(1))
    report = nk.swap(net, {"BatchNorm2d": lambda old: nk.GroupNorm(2, old.num_features)})
    assert isinstance(net[1], nk.GroupNorm)
    report.undo()
    assert net[1] is old
    net(torch.randn(2, 3, 4, 4))
    assert calls == [1]
