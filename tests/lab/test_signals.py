"""Ctrl-C, SIGTERM and SIGKILL: what is done stays, no worker is left behind, and the same command goes on."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lab.folders import environment

import normkit as nk
from normkit.lab.comparison import Comparison

OWN = "lab.own_task:Small"
TIMED = ["seconds", "step_ms", "units_per_second", "peak_mb"]
SIGNALS = [signal.SIGINT, signal.SIGTERM]
SWEEP = ["--task", OWN, "--seeds", "2", "--workers", "2"]
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are read from /proc")


@pytest.fixture
def start():
    """Starts a verb as a process, whose output can be read while it runs; none outlives its test."""
    with contextlib.ExitStack() as stack:

        def start(verb, *arguments, **options):
            process = subprocess.Popen(
                [sys.executable, "-m", "normkit", verb, *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment(),
                **options,
            )
            stack.enter_context(process)  # closes its pipe, and waits for it
            stack.callback(process.kill)  # before that
            return process

        yield start


def read_until(process, text):
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"it ended before it said {text!r}")


def numbers(result):
    return result.table.drop(columns=TIMED).to_dict("records")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return numbers(nk.lab.compare(OWN, seeds=2, steps=150, workers=0, progress=False, out=folder))


@needs_proc
@pytest.mark.parametrize("how", [signal.SIGKILL, *SIGNALS])
def test_a_sweep_that_was_stopped_goes_on_and_ends_as_if_it_had_not_been(start, tmp_path, how, whole):
    process = start("compare", *SWEEP, "--steps", 150, "--out", tmp_path)
    read_until(process, "[2/8]")
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(how)
    rest = process.communicate(timeout=60)[0]
    if how != signal.SIGKILL:
        assert process.returncode == 130, rest
        assert "runs are stored in" in rest
        assert "the same command does the rest" in rest
        assert "normkit: interrupted" in rest
        assert "Traceback" not in rest
    assert len(workers) >= 2
    assert within(10, lambda: not any(map(is_running, workers)))
    stored = len(Comparison.load(tmp_path).results)
    assert 2 <= stored < 8
    again = start("compare", *SWEEP, "--steps", 150, "--out", tmp_path)
    output = again.communicate(timeout=120)[0]
    assert again.returncode == 0, output
    assert f"{stored} of them are done already" in output
    assert numbers(Comparison.load(tmp_path)) == whole


@needs_proc
def test_workers_do_not_outlive_a_killed_sweep(start, tmp_path):
    process = start("compare", *SWEEP, "--steps", 100000, "--out", tmp_path, start_new_session=True)
    read_until(process, "results")
    group = os.getpgid(process.pid)
    assert within(30, lambda: members(group) >= 2)
    process.kill()
    process.communicate()
    assert within(30, lambda: members(group) == 0)


@pytest.mark.parametrize("number", SIGNALS)
def test_training_that_is_stopped_keeps_a_checkpoint(start, number, tmp_path):
    process = start("train", "--task", OWN, "--steps", 10000, "--out", tmp_path)
    read_until(process, "step 500/")
    process.send_signal(number)
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 130, rest
    assert "--resume goes on from" in rest
    assert "normkit: interrupted" in rest
    assert "Traceback" not in rest
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] >= 500
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "stopped"


def test_a_study_that_gets_sigterm_ends_as_with_ctrl_c(start, tmp_path):
    process = start("study", "cost", "--workers", 1, "--out", tmp_path)
    assert within(60, lambda: runs_in(tmp_path))
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 130, rest
    assert "runs are stored in" in rest
    assert "Traceback" not in rest


def within(seconds, condition):
    """Whether it comes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def runs_in(folder):
    """How many runs a folder has so far."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{folder / 'runs.sqlite'}?mode=ro", uri=True)) as db:
            return db.execute("SELECT count(*) FROM runs").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def state(number):
    """Of a process, as /proc has it: the letter, and the fields after it."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["Z", "", ""]


def is_running(number):
    return state(number)[0] != "Z"


def members(group):
    """How many processes of a group are alive and not zombies."""
    fields = (state(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return sum(letter != "Z" and int(own) == group for letter, _, own, *_ in fields)
