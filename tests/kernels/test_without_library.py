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


def test_results_are_the_references_and_one_warning_says_why():
    result = run("""
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import torch
    import normkit as nk
    from normkit.kernels import reference
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    w = torch.linspace(-1, 1, 6)
    rows = {"axes": (1,), "weight": w, "eps": 1e-5}
    pairs = [
        (nk.functional.layer_norm(x, (6,), w), reference.layer_norm(x, bias=None, **rows)),
        (nk.functional.rms_norm(x, (6,), w, 1e-5), reference.rms_norm(x, **rows)),
        (nk.functional.add_rms_norm(x, x, (6,), w, 1e-5)[0], reference.rms_norm(x + x, **rows)),
        (nk.LayerNorm(6)(x), reference.layer_norm(x, axes=(1,), weight=None, bias=None, eps=1e-5)),
        (nk.GroupNorm(2, 6)(x),
         reference.group_norm(x, num_groups=2, weight=None, bias=None, eps=1e-5, axis=1, mask=None)),
        (nk.BatchNorm1d(6)(x), reference.normalize(x, axes=(0,))),
    ]
    for ours, theirs in pairs:
        assert torch.equal(ours, theirs)
        ours.sum().backward()
print(sum(issubclass(w.category, RuntimeWarning) for w in seen))
print(next(w.message for w in seen if issubclass(w.category, RuntimeWarning)))
""")
    count, message = result.stdout.strip().split("\n")
    assert count == "1"
    assert message == (
        "normkit computes in plain torch operations, which is slower: "
        "the C++ kernels do not load: blocked for a test. `normkit info` says what to do."
    )


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
    assert {name for chosen in found["backends"].values() for name in chosen.values()} == {"reference"}


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
