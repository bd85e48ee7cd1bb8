"""Numbers nobody should type, and disks with no room: an answer in plain words, and at once."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time

import pytest
from lab.folders import ABOUT, OUTCOME, environment, forge

from normkit import cli
from normkit.errors import NormkitError, user_error
from normkit.lab import store as module
from normkit.lab import study
from normkit.lab.plan import make_plan, read_toml, values
from normkit.lab.run import Run
from normkit.lab.store import FILE, Store


@pytest.mark.parametrize(
    ("axis", "given", "text"),
    [
        ("lr", "1e-3:1e-1:100000000", "at most 100,000"),
        ("lr", "1e-3:1e-1:1" + "0" * 400, "at most 100,000"),
        ("lr", "1e-3:1e-1:1" + "0" * 5000, "not a range"),
        ("lr", "1e-320:1e308:5", "not a range"),
        ("lr", "nan", "lr got 'nan'"),
        ("lr", "inf", "lr got 'inf'"),
        ("lr", "-1", "lr= got -1"),
        ("lr", 10**400, "lr got"),
        ("depth", "1" + "0" * 400, "depth got"),
        ("depth", "1" + "0" * 5000, "depth got"),
        ("depth", 10**400, "depth got"),
        ("depth", float("inf"), "depth got"),
        ("depth", float("nan"), "depth got"),
        ("depth", "1:1" + "0" * 400 + ":3", "not a range"),
        ("width", 2**63, "width got"),
        ("batch_size", "9" * 30, "batch_size got"),
        ("warmup", -1, "warmup= got"),
        ("steps", 10**400, "steps got"),
        ("seeds", 10**400, "seeds got"),
        ("seeds", "1" + "0" * 400, "seeds got"),
        ("seeds", [2**63], "seeds got"),
        ("seeds", "0:1:3", "range"),
        ("set", {"dropout": "nan"}, "dropout got"),
        ("set", {"dropout": 10**400}, "dropout got"),
        ("set", {"length": 10**400}, "length got"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_number_that_cannot_be_gets_a_short_answer_at_once(axis, given, text):
    start = time.monotonic()
    with pytest.raises(NormkitError) as error:
        make_plan({axis: given})
    assert time.monotonic() - start < 5
    assert text in str(error.value)
    assert len(str(error.value)) < 1000


def test_a_study_of_more_seeds_than_anyone_has_is_refused():
    with pytest.raises(NormkitError, match="seeds got 100000000000"):
        study("numerics", seeds=10**11)


def test_ranges_are_as_before():
    assert values("1e30", float, "noise") == (1e30,)
    assert values("1e-3:1e-1:3", float, "lr") == (0.001, 0.01, 0.1)
    assert values("2:32:5", int, "depth") == (2, 4, 8, 16, 32)
    assert len(values("1e-5:1e-1:1000", float, "lr")) > 900


@pytest.mark.parametrize(
    "text",
    [
        "lr = " + "[" * 5000 + "]" * 5000,
        "lr = " + "{a = " * 5000 + "1" + "}" * 5000,
        "[" + ".".join(["a"] * 5000) + "]",
        "depth = 1" + "0" * 5000,
        "lr = nan",
        "norm = [[1]]",
        "norm = 1979-05-27",
        "seeds = [[]]",
        "seeds = {a = 1}",
        "set = 3",
        "task = {}",
        "set = {length = [[1]]}",
        "set = {length = {}}",
        'set = {length = "nan"}',
        "\ufeffnorm = 'rms'",
        "schedule = 3",
        "schedule = ['cosine']",
        "data = 3",
    ],
    ids=lambda text: text[:18],
)
def test_a_file_of_settings_that_cannot_be_is_refused(text, tmp_path, capsys):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(NormkitError) as error:
        make_plan(read_toml(path))
    assert len(str(error.value)) < 1500


def mounted(path, size):
    """A disk of its own, if we may have one."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, check=False
    )
    return done.returncode == 0


def report(folder, **more):
    command = [sys.executable, "-m", "normkit", "report", str(folder)]
    return subprocess.run(
        command, capture_output=True, text=True, env={**environment(), **more}, check=False, timeout=120
    )


def test_a_full_disk_is_read_with_the_log_on_it(tmp_path):
    disk = tmp_path / "disk"
    if shutil.which("mount") is None or not mounted(disk, "2m"):
        pytest.skip("no right to mount a disk here")
    try:
        keys = forge(tmp_path / "runs")
        with Store(tmp_path / "runs", write=True) as writer:
            writer.put("new", Run(norm="batch"), "data", "code", OUTCOME)
            writer.begin(ABOUT, [*keys, "new"])
            for name in (FILE, f"{FILE}-wal"):
                shutil.copy(tmp_path / "runs" / name, disk)
        fill(disk / "filler")
        result = report(disk, TMPDIR=str(disk))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert "held-out loss 2.500" in result.stdout, result.stderr
    assert "batch · pre" in result.stdout, "what is in the log alone is there, too"
    assert result.returncode == 2, "the page has no room"
    assert "report.html cannot be written: No space left" in result.stderr


def fill(path):
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def without_an_index(self, path):
    raise user_error("no index") from sqlite3.OperationalError("unable to open database file")


def test_a_log_that_cannot_be_indexed_is_read_through_a_copy(tmp_path, monkeypatch):
    keys = forge(tmp_path)
    connect, tried = Store._connect, []

    def first_fails(self, path):
        connect(self, path)
        tried.append(path)
        if len(tried) == 1:
            without_an_index(self, path)

    monkeypatch.setattr(Store, "_connect", first_fails)
    with Store(tmp_path) as store:
        assert [key for key, _, _ in store.runs()] == keys
    assert tried[0] == tmp_path / FILE
    assert tried[1].parent != tmp_path
    assert not tried[1].parent.exists()


def test_no_room_for_a_copy_anywhere_is_said(tmp_path, monkeypatch):
    forge(tmp_path)
    monkeypatch.setattr(Store, "_connect", without_an_index)
    monkeypatch.setattr(module, "ROOMS", (str(tmp_path / "nowhere"),))
    with pytest.raises(NormkitError, match=r"no room for the index[\s\S]*TMPDIR"):
        Store(tmp_path)


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_read(tmp_path, capsys):
    forge(tmp_path)
    tmp_path.chmod(0o500)
    with pytest.raises(SystemExit):
        cli.main(["report", str(tmp_path)])
    captured = capsys.readouterr()
    assert "held-out loss 2.500" in captured.out
    assert "cannot be written" in captured.err
