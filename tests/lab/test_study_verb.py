"""normkit study as a user types it."""

import json
import re

import pytest
from lab.test_verbs import run

from normkit.lab.claims import claims
from normkit.lab.design import Cell, all_studies
from normkit.lab.study_result import StudyResult, committed


def test_without_a_name_it_lists_the_studies_and_their_verdicts(capsys):
    code, out, err = run(capsys, "study")
    assert (code, err) == (0, "")
    assert all(name in out for name in all_studies())
    rows, known = json.loads(run(capsys, "study", "--json")[1]), committed()
    assert {row["name"]: row["verdict"] for row in rows} == {
        name: known[name].verdict if name in known else "" for name in all_studies()
    }


def test_a_study_shows_its_rules_and_saves_its_rows(capsys, tmp_path):
    code, out, err = run(
        capsys,
        "study",
        "invariances",
        "--workers",
        0,
        "--out",
        tmp_path / "runs",
        "--save",
        tmp_path / "rows",
    )
    assert (code, err) == (0, "")
    assert "The hypothesis: supported" in out
    assert "All eighteen cells are as published  18 cells (every seed)" in out
    assert f"page  {tmp_path / 'runs' / 'report.html'}" in out
    assert StudyResult.load(tmp_path / "rows" / "invariances.json").verdict == "supported"


def shown(folder):
    """The studies on its page."""
    return re.findall(r'class="study" id="([a-z-]+)"', (folder / "report.html").read_text())


def test_the_page_of_one_study_has_the_others_of_its_folder_too(capsys, tmp_path):
    options = ["--workers", 0, "--out", tmp_path]
    assert run(capsys, "study", "invariances", "numerics", "--seeds", 3, *options)[0] == 0
    assert shown(tmp_path) == ["invariances", "numerics"]
    assert run(capsys, "study", "numerics", "--seeds", 3, *options)[0] == 0
    assert shown(tmp_path) == ["invariances", "numerics"]


def test_a_smoke_run_is_not_put_beside_full_ones(capsys, tmp_path):
    options = ["--workers", 0, "--out", tmp_path]
    run(capsys, "study", "numerics", "--quick", *options)
    assert shown(tmp_path) == ["numerics"]
    _, out, _ = run(capsys, "study", "invariances", "--seeds", 3, *options)
    assert out.endswith(f"page  {tmp_path / 'report.html'}\n")
    assert shown(tmp_path) == ["invariances"]
    _, out, _ = run(capsys, "study", "invariances", "--quick", *options)
    assert out.endswith("report.html, of full runs: a smoke run is not put beside them\n")
    assert "A smoke run" not in (tmp_path / "report.html").read_text()


def test_a_study_that_is_interrupted_leaves_the_page_of_the_others(capsys, tmp_path, monkeypatch):
    options = ["--workers", 0, "--out", tmp_path]
    run(capsys, "study", "invariances", "--seeds", 3, *options)

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Cell, "perform", interrupt)
    assert run(capsys, "study", "numerics", *options)[0] == 130
    assert run(capsys, "report", tmp_path)[0] == 0
    assert shown(tmp_path) == ["invariances"]


def test_verify_measures_again_and_notices_a_change(capsys, monkeypatch):
    monkeypatch.chdir("/")  # it writes nothing where it is
    code, out, _ = run(capsys, "study", "invariances", "--verify", "--workers", 0)
    assert code == 0
    assert "All verdicts of 1 studies are as before." in out
    honest = Cell.perform

    def wrong(self):
        outcome = honest(self)
        outcome.metrics["matches"] = 0.0
        return outcome

    monkeypatch.setattr(Cell, "perform", wrong)
    code, out, _ = run(capsys, "study", "invariances", "--verify", "--workers", 0)
    assert code == 1
    assert "invariances, table: not supported now, 0 cells (every seed); supported in the results" in out


def test_the_ledger_is_shown_whole_or_for_a_study(capsys):
    code, out, err = run(capsys, "study", "--ledger")
    assert (code, err) == (0, "")
    assert "[n] c [h w]" in " ".join(out.split()), "brackets are text, not colours"
    rows = json.loads(run(capsys, "study", "--ledger", "--json")[1])
    assert [row["number"] for row in rows] == [claim.number for claim in claims()]
    few = json.loads(run(capsys, "study", "--ledger", "--json", "bias-and-gain")[1])
    assert [row["number"] for row in few] == list(all_studies()["bias-and-gain"].claims)


def test_the_page_of_the_committed_results_needs_no_run(capsys, tmp_path):
    path = tmp_path / "new" / "report.html"
    code, out, err = run(capsys, "study", "--page", "--out", path.parent)
    assert (code, err) == (0, "")
    assert out == f"page  {path}\n"
    assert "The ledger" in path.read_text()
    code, _, err = run(capsys, "study", "--page", "--out", path)
    assert code == 2, "a file is no folder"
    assert "cannot be written" in err


MISTAKES = {
    "an unknown name": (["batchsize"], "did you mean 'batch-size'"),
    "hours, without saying so": (["warm-up"], "takes about 130 minutes of one core"),
    "hours of nothing": (["--long"], "No study was named"),
    "an unknown name beside --all": (["nosuch", "--all"], "got 'nosuch'"),
    "names beside --all": (["cost", "--all"], "--all came with a name"),
    "no seeds": (["cost", "--seeds", "0"], "seeds got 0"),
    "a smoke run to be kept": (["cost", "--quick", "--save", "rows"], "--save came with --quick"),
    "rows into a file": (["cost", "--save", "file"], "--save got file"),
    "results into a file": (["cost", "--out", "file"], "file"),
    "verify with fewer seeds": (["--verify", "--seeds", "1"], "--verify came with --seeds"),
    "a smoke run of nothing": (["--quick"], "No study was named"),
    "rows of nothing": (["--save", "rows"], "No study was named"),
    "verify, and keep the rows": (["--verify", "--save", "rows"], "--verify came with --save"),
    "a page of one study": (["--page", "cost"], "--page came with a name"),
    "a ledger and a page": (["--ledger", "--page"], "--ledger came with --page"),
    "json of a run": (["cost", "--json"], "a name came with --json"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_clear_message_before_anything_is_run(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Cell, "perform", lambda self: pytest.fail("it runs"))
    (tmp_path / "file").touch()
    arguments, message = MISTAKES[name]
    code, out, err = run(capsys, "study", *arguments, "--workers", "0")
    assert code == 2
    assert message in err
    assert "Traceback" not in out + err
