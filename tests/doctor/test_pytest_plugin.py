"""The fixture ``assert_healthy``, in runs of pytest of their own.

Where an editable install is older than the plugin's entry point, it is named with -p.
"""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = "normkit.pytest_plugin"
TEST = """
import torch
from torch import nn

def test_norms(assert_healthy):
    assert_healthy(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, eps={eps})), torch.randn(8, 4), {options})
"""


def _is_installed():
    return any(point.value == PLUGIN for point in entry_points(group="pytest11"))


def run(folder, text, *options):
    (folder / "test_it.py").write_text(text)
    named = [] if _is_installed() else ["-p", PLUGIN]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *named,
        "-W",
        "error",
        *options,
    ]
    # the folder's own settings, and not those of this repository
    (folder / "pytest.ini").write_text("[pytest]\n")
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return result.returncode, result.stdout + result.stderr


def test_a_healthy_model_passes_and_a_sick_one_fails_with_the_report(tmp_path):
    code, text = run(tmp_path, TEST.format(eps="1e-5", options=""))
    assert (code, "1 passed" in text) == (0, True), text
    code, text = run(tmp_path, TEST.format(eps="0.1", options=""))
    assert code == 1, text
    assert "AssertionError" in text
    assert "error NK204 absurd-eps: 1" in text
    assert "not healthy: 1 error" in text
    code, text = run(tmp_path, TEST.format(eps="0.1", options='ignore="NK204"'))
    assert (code, "1 passed" in text) == (0, True), text


def test_pytest_lists_the_fixture_with_a_word_on_it(tmp_path):
    code, text = run(tmp_path, "", "--fixtures")
    assert code in (0, 5), text
    assert "assert_healthy [session scope]" in text
    assert "nk.assert_healthy(model, batch, **options)" in text


def test_pytest_starts_without_torch(tmp_path):
    text = "import sys\n\ndef test_it():\n    assert {module!r} {how} sys.modules\n"
    code, output = run(tmp_path, text.format(module="normkit", how="in"))
    assert code == 0, output
    code, output = run(tmp_path, text.format(module="torch", how="not in"))
    assert code == 0, output


@pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="the tests stand alone, without the repository"
)
def test_the_entry_point_names_the_plugin():
    text = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points.pytest11]\nnormkit = "{PLUGIN}"\n' in text
