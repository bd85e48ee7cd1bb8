"""What is stored stays: other versions, other files, full disks, two sweeps at once."""

import sqlite3
import subprocess
import sys

import pytest

from normkit.errors import NormkitError
from normkit.lab import store as module
from normkit.lab.measuring import Outcome
from normkit.lab.run import Run
from normkit.lab.store import Store

OUTCOME = Outcome("ok", best_loss=2.0, final_loss=2.5, baselines={"a": 3.0}, curve=[[1, 3.0], [2, None]])


def fill(folder, keys=("a", "b")):
    with Store(folder, write=True) as store:
        store.begin({"title": "t"}, keys)
        for key in keys:
            store.put(key, Run(seed=ord(key)), "data", "code", OUTCOME)


def test_what_is_put_is_found_again(tmp_path):
    fill(tmp_path / "new" / "folder")
    with Store(tmp_path / "new" / "folder") as store:
        assert store.latest() == ({"title": "t"}, ["a", "b"])
        assert [(k, r.seed) for k, r, _ in store.runs()] == [("a", 97), ("b", 98)]
        assert store.runs(["b", "missing"])[0][2] == OUTCOME


def test_a_failed_run_is_to_be_tried_again(tmp_path):
    with Store(tmp_path, write=True) as store:
        store.put("a", Run(), "data", "code", Outcome("failed", error="why"))
        assert store.done(["a"]) == {}
        store.put("a", Run(), "data", "code", OUTCOME)
        assert list(store.done(["a"])) == ["a"]


def test_a_folder_in_use_is_refused_until_it_is_free(tmp_path):
    with Store(tmp_path, write=True), pytest.raises(NormkitError, match="in use by another sweep"):
        Store(tmp_path, write=True)
    Store(tmp_path, write=True).close()


def test_a_killed_process_does_not_keep_the_folder(tmp_path):
    code = (
        "import os, sys; from normkit.lab.store import Store; s = Store(sys.argv[1], write=True);"
        "print('held', flush=True); os.kill(os.getpid(), 9)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "held" in result.stdout
    Store(tmp_path, write=True).close()


def test_it_can_be_read_while_a_sweep_writes(tmp_path):
    with Store(tmp_path, write=True) as writer:
        writer.begin({}, ["a"])
        with Store(tmp_path) as reader:
            assert reader.runs() == []
            writer.put("a", Run(), "data", "code", OUTCOME)
            assert len(reader.runs()) == 1


@pytest.mark.parametrize("write", [True, False])
def test_another_version_is_refused_and_left_as_it_is(tmp_path, write):
    fill(tmp_path)
    db = sqlite3.connect(tmp_path / module.FILE)
    db.execute("PRAGMA user_version=99")
    db.close()
    before = (tmp_path / module.FILE).read_bytes()
    with pytest.raises(NormkitError, match="holds format 99"):
        Store(tmp_path, write=write)
    assert (tmp_path / module.FILE).read_bytes() == before


@pytest.mark.parametrize("write", [True, False])
def test_a_file_of_another_kind_is_refused_and_left_as_it_is(tmp_path, write):
    (tmp_path / module.FILE).write_text("not a database at all, but rather a long text " * 50)
    before = (tmp_path / module.FILE).read_bytes()
    with pytest.raises(NormkitError, match="cannot be read"):
        Store(tmp_path, write=write)
    assert (tmp_path / module.FILE).read_bytes() == before


def test_a_database_of_others_is_refused_and_left_as_it_is(tmp_path):
    db = sqlite3.connect(tmp_path / module.FILE)
    db.execute("CREATE TABLE theirs (x)")
    db.commit()
    db.close()
    before = (tmp_path / module.FILE).read_bytes()
    with pytest.raises(NormkitError, match="no runs of normkit"):
        Store(tmp_path, write=True)
    assert (tmp_path / module.FILE).read_bytes() == before


def test_a_store_that_was_cut_off_at_birth_is_begun_again(tmp_path):
    (tmp_path / module.FILE).touch()
    fill(tmp_path)


def test_a_folder_without_runs_is_named(tmp_path):
    with pytest.raises(NormkitError, match=r"has no runs\.sqlite"):
        Store(tmp_path)


def test_a_path_that_cannot_be_a_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NormkitError, match="cannot be written"):
        Store(tmp_path / "file" / "folder", write=True)


def test_a_full_disk_is_found_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 3 << 20})())
    with pytest.raises(NormkitError, match="3 MB are free"):
        Store(tmp_path, write=True)


def test_a_disk_that_fills_up_loses_nothing_that_is_there(tmp_path):
    fill(tmp_path)
    with Store(tmp_path, write=True) as store:
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count={pages}")  # SQLite's way to have a full disk
        big = Outcome("ok", curve=[(k, 1.0) for k in range(20_000)])
        with pytest.raises(NormkitError, match=r"cannot be written: database or disk is full"):
            store.put("c", Run(), "data", "code", big)
        assert len(store.runs(["a", "b", "c"])) == 2
    with Store(tmp_path) as store:
        assert len(store.runs()) == 2


def test_odd_names_of_folders_work(tmp_path):
    fill(tmp_path / "50% of #1? ünï")
    with Store(tmp_path / "50% of #1? ünï") as store:
        assert len(store.runs()) == 2


def test_another_process_is_kept_out_and_may_read(tmp_path):
    """The lock is the folder's, not a process's."""
    fill(tmp_path)
    code = (
        "import sys; from normkit.lab.store import Store\n"
        "print(len(Store(sys.argv[1]).runs()))\n"
        "try:\n    Store(sys.argv[1], write=True)\nexcept Exception as error:\n    print(error)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with Store(tmp_path, write=True):
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("2\n")
    assert "in use by another sweep" in result.stdout
    assert "in use" not in subprocess.run(command, capture_output=True, text=True, check=True).stdout
