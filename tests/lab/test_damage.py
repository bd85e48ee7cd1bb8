"""A damaged folder: one clear error, or what can be read, with names of what cannot. Never a traceback."""

import json
import random
import sqlite3

import pytest
from lab.folders import ABOUT, OUTCOME, forge

from normkit import cli
from normkit.errors import NormkitError
from normkit.lab.comparison import Comparison
from normkit.lab.run import Run
from normkit.lab.store import FILE, Store

SEEDS = range(60)


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return stopped.value.code or 0, captured.out, captured.err


def use(folder):
    """Everything that reads a folder, but for the page, which takes a second."""
    from normkit.lab import export

    found = Comparison.load(folder)
    found.summary, found.warnings, export.to_json(found), found.table, repr(found), found._repr_html_()
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a sound folder, larger than a few pages."""
    folder = tmp_path_factory.mktemp("whole")
    about = {**ABOUT, "axes": {"norm": ["layer", "rms"], "depth": list(range(1, 21))}}
    runs = [Run(norm=norm, depth=depth) for depth in range(1, 21) for norm in ("layer", "rms")]
    keys = [run.key_with("data", "code") for run in runs]
    with Store(folder, write=True) as store:
        store.begin(about, keys)
        for key, run in zip(keys, runs, strict=True):
            store.put(key, run, "data", "code", OUTCOME)
        store.amend({**about, "seconds": 3.0}, keys)
    db = sqlite3.connect(folder / FILE)
    db.execute("PRAGMA journal_mode=DELETE")
    db.close()
    assert len(use(folder).results) == 40
    return (folder / FILE).read_bytes()


def cut(data, chance):
    return data[: chance.randrange(1, len(data))]


def flip(data, chance):
    found = bytearray(data)
    for _ in range(chance.choice([1, 10, 200])):
        found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
    return bytes(found)


def wipe(data, chance):
    """A page of zeros, as a disk leaves it."""
    at = 4096 * chance.randrange(len(data) // 4096)
    return data[:at] + bytes(4096) + data[at + 4096 :]


def noise(data, chance):
    at = chance.randrange(len(data) - 512)
    return data[:at] + chance.randbytes(512) + data[at + 512 :]


@pytest.mark.parametrize("how", [cut, flip, wipe, noise])
def test_no_damage_gives_anything_but_a_clear_error_or_what_is_left(how, whole, tmp_path):
    read = refused = 0
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / FILE).write_bytes(how(whole, random.Random(seed)))
        try:
            found = use(folder)
        except NormkitError as error:
            said = str(error)
            refused += 1
        else:
            said = "expected:"
            read += 1
            assert len(found.results) + len(found.unread) == 40
            if found.unread:
                assert "Damaged" in found.warnings[0]
        assert "expected:" in said or "fix:" in said, said
        try:  # a sweep into such a folder says the same, or goes on
            with Store(folder, write=True) as store:
                store.begin(ABOUT, ["a"])
                store.done(["a"])
        except NormkitError:
            pass
    assert refused
    assert read, "some files can be read in part"


ROWS = {
    "outcome": [
        "",
        "[]",
        "nonsense",
        "{" * 100_000,
        "[" * 100_000,
        json.dumps({"status": "ok"}),
        None,
        7,
        b"\xff",
    ],
    "config": ["{}", "null", '{"task": 3}', json.dumps({"study": "x", "settings": [], "seed": 0})],
}
FIELDS = {
    "status": ["fine", None, 3],
    "final_loss": ["2", [1], 1e999, 10**400],
    "curve": [None, [[1]], [["a", 1.0]], [[1, "b"]], {}, [[1, float("nan")]]],
    "by_depth": [[], {"start": []}, {"start": {"gradient": ["x"]}}, {"start": {"gradient": [-1.0]}}],
    "metrics": [[1], {"a": "b"}, {"a": {"b": 1}}],
    "steps": [1.5, -1, 10**30],
    "step_ms": [float("nan"), -1.0, "x"],
    "parameters": [None, "3"],
    "error": [3],
    "unheard_of": [1],
}


def spoil(folder, column, value):
    db = sqlite3.connect(folder / FILE)
    db.execute(f"UPDATE runs SET {column} = ? WHERE rowid = 1", (value,))
    db.commit()
    db.close()


@pytest.mark.parametrize(("column", "value"), [(c, v) for c, vs in ROWS.items() for v in vs if v is not None])
def test_one_bad_row_does_not_hide_the_others(column, value, tmp_path, capsys):
    key = forge(tmp_path)[0]
    spoil(tmp_path, column, value)
    found = use(tmp_path)
    assert len(found.results) == 3
    assert key[:12] in found.warnings[0]
    code, out, err = run(capsys, "report", tmp_path, "--json")
    assert (code, len(json.loads(out))) == (0, 3)
    assert "1 runs cannot be read" in err
    with Store(tmp_path, write=True) as store:
        assert key not in store.done([key]), "it is done again"


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in FIELDS.items() for v in vs])
def test_a_field_of_an_outcome_that_cannot_be_is_noticed(name, value, tmp_path):
    forge(tmp_path)
    spoil(tmp_path, "outcome", json.dumps({**OUTCOME.as_dict(), name: value}))
    found = use(tmp_path)
    assert len(found.results) == 3
    assert name in found.warnings[0]


@pytest.mark.parametrize("change", [{"lr": 0.5}, {"seed": 77}, {"norm": "batch"}])
def test_settings_that_have_changed_on_disk_are_noticed(change, tmp_path):
    forge(tmp_path)
    db = sqlite3.connect(tmp_path / FILE)
    (config,) = db.execute("SELECT config FROM runs WHERE rowid = 1").fetchone()
    db.close()
    spoil(tmp_path, "config", json.dumps({**json.loads(config), **change}))
    assert "do not belong to its key" in use(tmp_path).warnings[0]


def test_a_run_that_is_gone_from_a_finished_sweep_is_named(tmp_path):
    forge(tmp_path)
    db = sqlite3.connect(tmp_path / FILE)
    db.execute("DELETE FROM runs WHERE rowid = 2")
    db.commit()
    db.close()
    assert "1 runs cannot be read and are left out" in use(tmp_path).warnings[0]


@pytest.mark.parametrize("name", [n for n in ABOUT if n != "finished"])
@pytest.mark.parametrize("value", [None, 3.5, [[]], {"a": {}}, -1, 10**400])
def test_words_of_a_sweep_that_cannot_be_are_refused_or_harmless(name, value, tmp_path):
    if (value is None and name in ("prune", "budget", "planned")) or (value == 3.5 and name == "budget"):
        return  # that it may be
    forge(tmp_path, about={name: value})
    with pytest.raises(NormkitError, match=f"its {name} is"):
        use(tmp_path)


def test_a_sweep_without_a_word_is_refused(tmp_path):
    forge(tmp_path)
    with Store(tmp_path, write=True) as store:
        store.begin({"title": "t"}, [])
    with pytest.raises(NormkitError, match="it has no command"):
        use(tmp_path)


def test_a_folder_of_studies_is_told_from_one_of_a_comparison(tmp_path, capsys):
    with Store(tmp_path, write=True) as store:
        store.begin({"studies": ["numerics"], "quick": True}, [])
    code, _, err = run(capsys, "report", tmp_path)
    assert code == 2
    assert "it is about studies" in err


def test_a_view_in_place_of_a_table_is_not_asked(tmp_path):
    forge(tmp_path)
    db = sqlite3.connect(tmp_path / FILE)
    db.executescript(
        "ALTER TABLE runs RENAME TO hidden; CREATE VIEW runs AS WITH RECURSIVE n(k) AS "
        "(SELECT 1 UNION ALL SELECT k + 1 FROM n) SELECT k AS key, k AS config, k AS data, k AS code, "
        "k AS outcome FROM n"
    )
    db.close()
    with pytest.raises(NormkitError, match="no runs of normkit"):
        Store(tmp_path)
