"""A machine without the C++ library: the same numbers, one warning, and a reason."""

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest

from normkit.kernels.cpu import library

COMPILED = "normkit.kernels.cpu._C"
BLOCKED = f"""
import sys, warnings
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name == {COMPILED!r}:
            raise ImportError("blocked for a test")
sys.meta_path.insert(0, Blocked())
"""


def run(code):
    result = subprocess.run([sys.executable, "-c", BLOCKED + code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result


def test_torchs_operators_compute_and_one_warning_says_why():
    result = run("""
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import torch
    import torch.nn.functional as F
    import normkit as nk
    from normkit.kernels import reference
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    w = torch.linspace(-1, 1, 6)
    real = torch.tensor([True, True, True, False])
    pairs = [
        (nk.functional.layer_norm(x, (6,), w), F.layer_norm(x, (6,), w)),
        (nk.functional.rms_norm(x, (6,), w, 1e-5), F.rms_norm(x, (6,), w, 1e-5)),
        (nk.functional.add_rms_norm(x, x, (6,), w, 1e-5)[0], F.rms_norm(x + x, (6,), w, 1e-5)),
        (nk.LayerNorm(6)(x), F.layer_norm(x, (6,))),
        (nk.GroupNorm(2, 6)(x), F.group_norm(x, 2)),
        (nk.BatchNorm1d(6)(x), F.batch_norm(x, None, None, training=True)),
        (nk.BatchNorm1d(6)(x, real), reference.normalize(x, axes=(0,), mask=real[:, None])),
    ]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs)
        ours.sum().backward()
    with nk.exact():
        far = x.detach() + 1e6
        exact = nk.functional.layer_norm(far, (6,))
    assert torch.equal(exact, reference.layer_norm(far, axes=(1,), weight=None, bias=None, eps=1e-5))
print(sum(issubclass(w.category, RuntimeWarning) for w in seen))
print(next(w.message for w in seen if issubclass(w.category, RuntimeWarning)))
""")
    count, message = result.stdout.strip().split("\n")
    assert count == "1"
    assert message.startswith(
        "normkit runs without kernels of its own: the C++ kernels do not load: blocked for a test. torch's op"
    )


def test_the_operators_are_defined_all_the_same_and_computed_by_the_reference():
    run("""
import torch
import normkit as nk
from normkit.kernels import operators
ops = torch.ops.normkit
x, w = torch.randn(5, 8), torch.rand(8)
y, stats = ops.rows_train(x, w, w, 1, 1e-5, 1)
torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (8,), w, w))
torch.testing.assert_close(stats[0], x.mean(1))
ready = torch.empty(5, 8)
ops.rows_out(x, w, w, 1, 1e-5, 1, ready)
assert torch.equal(ready, y) and ready._version > 0
leaf = x.clone().requires_grad_()
torch.nn.functional.layer_norm(leaf, (8,), w, w).backward(x)
dx, dw, db = ops.rows_backward(x, x, w, w, stats, None, 1, 1e-5, 1, True, True, False)
torch.testing.assert_close(dx, leaf.grad)
assert db.numel() == 0
image = torch.randn(2, 6, 3, 4)
z, found = ops.groups(image, 2, 1, 3, 2, 12, None, None, False, None, None, None, 1e-5, True)
torch.testing.assert_close(z, torch.nn.functional.group_norm(image, 3))
torch.testing.assert_close(found[1], image.double().reshape(6, -1).var(1, correction=0))
for name in operators.OPERATORS:
    assert getattr(ops, name)
torch.library.opcheck(ops.rows_train.default, (x, w, w, 1, 1e-5, 1))
call = (image, 2, 1, 3, 2, 12, None, None, False, None, None, None, 1e-5, True)
torch.library.opcheck(ops.groups.default, call)
""")


def test_torch_compile_makes_one_graph_all_the_same():
    run("""
import torch
import normkit as nk
x = torch.arange(8.0).reshape(2, 4)
f = torch.compile(lambda x: nk.functional.layer_norm(x, (4,)), fullgraph=True, backend="eager")
torch.testing.assert_close(f(x), torch.nn.functional.layer_norm(x, (4,)))
""")


def test_info_says_why_and_what_runs_instead():
    found = json.loads(run("from normkit.cli import main; main(['info', '--json'])").stdout)
    assert found["isa"] is None
    assert found["kernels_missing"] == "the C++ kernels do not load: blocked for a test"
    assert {name for chosen in found["backends"].values() for name in chosen.values()} == {"aten"}


@pytest.mark.parametrize("note", ["there is no 'g++'\n", None])
def test_what_a_failed_build_has_noted_is_the_reason(note, tmp_path, monkeypatch):
    copy = shutil.copy(library.__file__, tmp_path)
    if note is not None:
        (tmp_path / "build_error.txt").write_text(note)
    monkeypatch.setitem(sys.modules, COMPILED, None)
    spec = importlib.util.spec_from_file_location("library_elsewhere", copy)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    assert loaded.isa() is None
    if note is None:
        assert loaded.MISSING.startswith(f"the C++ kernels do not load: import of {COMPILED} halted")
    else:
        assert loaded.MISSING == "the C++ kernels were not built: there is no 'g++'"
