"""A task that ends or hangs its process takes no other run along, and the sweep says what happened."""

import os
import subprocess
import sys

import pytest
from lab.folders import environment

import normkit as nk
from normkit.errors import NormkitError

TROUBLE = "lab.own_task:Trouble"


def small(folder, **changes):
    settings = {"task": TROUBLE, "seeds": 3, "norm": "rms", "lr": 1e-2, "steps": 5, "progress": False}
    return nk.lab.compare(out=folder, **{**settings, **changes})


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_sweep_with_sys_exit_in_it_ends_with_a_word(workers, tmp_path):
    options = f"--task {TROUBLE} --steps 5 --norm rms --lr 1e-2 --seeds 3 --set what=exit --workers {workers}"
    command = [sys.executable, "-m", "normkit", "compare", *options.split(), "--out", str(tmp_path)]
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment(), check=False, timeout=120
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "seed 1: failed: sys.exit(3) was called" in result.stdout
    assert "1 runs failed and are left out" in result.stdout
    assert "[3/3]" in result.stdout


def test_a_task_that_exits_while_it_is_tried_out_is_named(tmp_path):
    with pytest.raises(NormkitError, match=r"SystemExit: 3[\s\S]*own_task.py, line"):
        small(tmp_path, what="exit", when=0, workers=0)


def test_a_module_that_exits_when_it_is_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(7)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NormkitError, match="cannot be imported: SystemExit: 7"):
        small(tmp_path / "o", task="leaves:Task")


def test_a_task_that_hangs_while_it_is_tried_out_is_named(tmp_path):
    with pytest.raises(NormkitError, match=r"longer than its limit of 1 seconds"):
        small(tmp_path, what="hang", when=0, workers=0, limit=1)


def test_a_run_that_was_stopped_is_tried_again_with_another_limit(tmp_path):
    settings = {"what": "hang", "parent": os.getpid(), "workers": 1}
    first = small(tmp_path, limit=5, **settings)
    assert [o.status == "stopped" for _, o in first.results] == [False, True, False]
    assert "limit of 5 seconds" in first.results[1][1].error
    second = small(tmp_path, limit=6, **settings)
    assert "limit of 6 seconds" in second.results[1][1].error
