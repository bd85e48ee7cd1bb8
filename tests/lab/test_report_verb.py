"""normkit report on what is no folder of a comparison: what it is, and what to type instead."""

from pathlib import Path

import pytest
from lab.folders import forge
from lab.test_verbs import run

from normkit.lab.store import Store
from normkit.lab.studying import stored_studies, study
from normkit.lab.training import Training


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies")
    study("invariances", seeds=3, out=folder, workers=0, progress=False)
    study("numerics", seeds=3, out=folder, workers=0, progress=False)
    return folder


def test_a_folder_of_studies_gets_its_page_again(capsys, studies, monkeypatch):
    monkeypatch.setattr(Training, "advance", lambda self: pytest.fail("it trains"))
    (studies / "report.html").unlink(missing_ok=True)
    assert run(capsys, "report", studies) == (0, f"page  {studies / 'report.html'}\n", "")
    page = (studies / "report.html").read_text()
    assert 'id="invariances"' in page
    assert 'id="numerics"' in page


@pytest.mark.parametrize("form", ["--json", "--csv", "--parquet", "--tensorboard"])
def test_the_rows_of_studies_are_exported_by_their_own_verb(form, capsys, studies):
    code, out, err = run(capsys, "report", studies, form)
    assert (code, out) == (2, "")
    assert f"{form} is for comparisons" in err
    assert f"normkit study NAME --out {studies} --save" in err


def test_studies_of_which_none_has_ended_get_a_message(capsys, tmp_path):
    with Store(tmp_path, write=True) as store:
        store.begin({"studies": {}}, [])
    code, _, err = run(capsys, "report", tmp_path)
    assert code == 2
    assert "none of them has ended" in err


NO_ABOUT = {"quick": False, "code": "c", "machine": {}, "date": "d"}


@pytest.mark.parametrize("keys", [["nowhere"], [], 3, [3]])
@pytest.mark.parametrize("name", ["invariances", "no-study"])
def test_a_description_that_does_not_fit_its_rows_gets_a_message(name, keys, capsys, tmp_path):
    with Store(tmp_path, write=True) as store:
        store.begin({"studies": {name: {**NO_ABOUT, "keys": keys}}}, [])
    code, out, err = run(capsys, "report", tmp_path)
    assert (code, out) == (2, "")
    assert "cannot be used" in err or "none of them has ended" in err
    assert "Traceback" not in err


def test_what_is_no_folder_of_a_comparison_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    forge(tmp_path / "runs" / "text")
    for folder in ("empty", "train"):
        Path(folder).mkdir()
    Path("train/result.json").write_text("{}")
    Path("file").touch()
    Path("runs/text/report.html").touch()
    said = {
        "missing": ("there is no such folder", "normkit compare"),
        "empty": ("it has no comparison in it", "normkit compare"),
        "train": ("it is a folder of  normkit train", "train/result.json"),
        "file": ("it is a file", "name a folder"),
        "runs/text/report.html": ("it is a file", "normkit report runs/text"),
        "runs": ("it has comparisons in folders of its own", "normkit report runs/text"),
    }
    for name, (why, fix) in said.items():
        code, out, err = run(capsys, "report", name)
        assert (code, out) == (2, "")
        assert err.startswith(f"{name} has no runs.sqlite: {why}")
        assert fix in err
        assert "Traceback" not in err


@pytest.mark.parametrize("method", ["open", "is_file"])
def test_a_folder_or_a_file_that_may_not_be_read_says_so(method, capsys, tmp_path, monkeypatch):
    def denied(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    forge(tmp_path)
    monkeypatch.setattr(Path, method, denied)
    code, _, err = run(capsys, "report", tmp_path)
    assert code == 2
    assert err.startswith(f"{tmp_path} cannot be read: Permission denied.")


def test_a_study_with_new_rows_takes_the_place_of_its_old_ones(studies):
    assert len(stored_studies(studies)["invariances"].seeds) == 3
    study("invariances", seeds=4, out=studies, workers=0, progress=False)
    again = stored_studies(studies)
    assert {name: len(result.seeds) for name, result in again.items()} == {
        "invariances": 4,
        "numerics": 3,
    }
