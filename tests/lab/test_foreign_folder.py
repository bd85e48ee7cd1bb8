"""A folder that came from somewhere else is read: nothing that it names is run, nothing else is written."""

import sys

import pytest
import torch
from lab.folders import ABOUT, forge

from normkit import cli
from normkit.errors import NormkitError
from normkit.lab.run import Run

FORMS = [[], ["--json"], ["--csv"], ["--parquet"], ["--tensorboard"]]
HOSTILE = {
    "a task": {"task": "pwn:X"},
    "a norm": {"norm": "pwn:X"},
    "a placement": {"placement": "pwn:X"},
    "an axis that is the norm's maker": {"norm": "pwn:X", "about": {"axes": {"norm_factory": [1, 2]}}},
    "an axis that is the placement": {"placement": "pwn:X", "about": {"axes": {"placement_rule": [1, 2]}}},
    "an axis that is the code": {"task": "pwn:X", "about": {"axes": {"code": [1, 2]}}},
    "an axis that is the task": {"task": "pwn:X", "about": {"axes": {"build_task": [1, 2]}}},
    "a problem that is the code": {"task": "pwn:X", "about": {"axes": {"code": [1]}, "problem": ["code"]}},
}


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return stopped.value.code or 0, captured.out, captured.err


@pytest.mark.filterwarnings("ignore")  # tensorboard's own
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "".join(form) or "page")
@pytest.mark.parametrize("name", HOSTILE)
def test_reading_a_folder_imports_nothing_that_it_names(name, form, capsys, tmp_path, monkeypatch):
    forge(tmp_path, **HOSTILE[name])
    (tmp_path / "pwn.py").write_text("open('ran', 'w').close()\nclass X: pass\n")
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "report", ".", *form)
    assert not (tmp_path / "ran").exists()
    assert "pwn" not in sys.modules
    assert code in (0, 2)
    assert "Traceback" not in err
    if "about" not in HOSTILE[name]:
        assert code == 0, err


def test_a_run_is_put_into_words_without_its_task():
    assert "depth 3" in str(Run(task="no_such_module:Task", depth=3))
    assert "depth" not in str(Run(task="text", depth=4)), "as the task has it by default"
    assert str(Run(task="os:path")).startswith("layer, pre, lr 0.001")


def test_only_fields_of_a_run_are_axes():
    with pytest.raises(NormkitError, match="norm_factory"):
        Run(norm="no_such_module:Norm").value("norm_factory")
    assert Run(options=(("length", 3),)).value("length") == 3
    assert Run(lr=0.5).value("lr") == 0.5


def test_a_checkpoint_is_data_and_not_a_program(tmp_path):
    from normkit.lab import train

    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"config": Bomb()}, tmp_path / "checkpoint.pt")
    with pytest.raises(NormkitError, match="cannot be read"):
        train(Run(task="lab.own_task:Small", steps=2), tmp_path, resume=True, progress=False)
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore")
def test_an_export_does_not_follow_links_out_of_the_folder(capsys, tmp_path):
    forge(tmp_path / "runs")
    (tmp_path / "victim").mkdir()
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "runs" / "tensorboard").symlink_to(tmp_path / "victim")
    (tmp_path / "runs" / "runs.parquet").symlink_to(tmp_path / "precious")
    (tmp_path / "runs" / "report.html").symlink_to(tmp_path / "precious")
    for form in FORMS:
        assert run(capsys, "report", tmp_path / "runs", *form)[0] == 0
    assert (tmp_path / "precious").read_text() == "mine"
    assert not list((tmp_path / "victim").iterdir())


@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_tensorboard_is_named_by_any_values(capsys, tmp_path):
    odd = "../\\..:*?\0\n" + "long " * 100
    forge(tmp_path / "runs", options=(("data", "d"), ("name", odd)), about={"axes": {"name": [odd, "b"]}})
    code, _, err = run(capsys, "report", tmp_path / "runs", "--tensorboard")
    assert (code, err) == (0, "")
    assert len(list((tmp_path / "runs" / "tensorboard").iterdir())) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"]


def test_the_words_of_a_sweep_are_those_that_a_page_needs():
    """What is forged here is what a comparison writes: the tests above would be of no use otherwise."""
    import inspect

    from normkit.lab.jobs import Sweep
    from normkit.lab.sweep import compare_settings

    source = inspect.getsource(Sweep.about) + inspect.getsource(compare_settings)
    assert all(f'"{name}":' in source for name in ABOUT)
