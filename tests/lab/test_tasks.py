"""The tasks that come with normkit, the data of users, and the protocol."""

import math

import pytest
import torch

import normkit as nk
from normkit.errors import NormkitError
from normkit.lab.plan import make_plan
from normkit.lab.task import find
from normkit.lab.tasks import corpus
from normkit.lab.training import Training

LIBRARY = "def f(x):\n    return x + 1\n\n" * 900


@pytest.fixture
def folder(tmp_path):
    """Twelve different files of a user's own."""
    root = tmp_path / "texts"
    root.mkdir()
    for k in range(12):
        lines = [f"value_{k}_{j} = compute({k}, {j}, 'name {k * j}')" for j in range(150)]
        (root / f"file{k:02}.txt").write_text("\n".join(lines))
    return root


TASKS = [
    ("text", {}, {}),
    ("text", {"qk_norm": True, "dropout": 0.1}, {"norm": "rms", "placement": "normformer"}),
    ("digits", {}, {"norm": "batch", "placement": "post"}),
    ("digits", {"network": "conv"}, {"norm": "batch"}),
    ("digits", {"network": "conv"}, {"norm": "group"}),
    ("digits", {"network": "conv"}, {"norm": "instance", "placement": "peri"}),
    ("lines", {}, {"norm": "batch"}),
    ("stream", {"jump": "shift"}, {"norm": "layer"}),
    ("examples.dates:Dates", {}, {"norm": "rms"}),
]


@pytest.mark.parametrize(("name", "fields", "arm"), TASKS)
def test_every_task_learns_something_in_forty_steps(name, fields, arm, monkeypatch):
    monkeypatch.syspath_prepend(".")
    plan = make_plan(
        {"task": name, "set": fields, "lr": 3e-3, "depth": 2, "width": 32, "steps": 40, "seeds": 1}
        | {"norm": "layer", "placement": "pre"}
        | arm
    )
    task = find(name, fields)
    training = Training(plan.runs[0], task)
    before = training.evaluate()
    losses = [training.advance() for _ in range(40)]
    assert all(map(math.isfinite, losses))
    assert training.evaluate() < before - 0.05
    baselines = training.task.baselines()
    assert baselines
    assert all(0.5 < loss < 5 for loss in baselines.values())
    assert task.units >= 1
    assert len(task.layers(training.model)) == (4 if "Dates" in name else 2)
    assert task.source


@pytest.mark.parametrize("name", ["text", "digits", "lines", "stream"])
def test_a_task_gives_the_same_numbers_every_time(name):
    first, second = find(name, {}), find(name, {})
    assert first.fingerprint == second.fingerprint
    batches = [task.batch(4, torch.Generator().manual_seed(3)) for task in (first, second)]
    for a, b in zip(*(list(nk.lab.task.tensors(batch)) for batch in batches), strict=True):
        assert torch.equal(a, b)
    other = first.batch(4, torch.Generator().manual_seed(4))
    assert not torch.equal(next(nk.lab.task.tensors(other)), next(nk.lab.task.tensors(batches[0])))


def written(tensor):
    return bytes(tensor.tolist())


def test_text_is_split_by_whole_files_drawn_by_the_seed(folder):
    found = corpus.read(str(folder))
    contents = dict(found.files)
    drawn = set()
    for seed in range(4):
        parts = found.split(seed)
        kept = written(parts.held_out) + written(parts.validation)
        names = {name for name, content in contents.items() if content in kept}
        assert not any(contents[name] in written(parts.training) for name in names)
        assert len(kept) + len(parts.training) == found.size
        assert min(len(parts.held_out), len(parts.validation)) >= found.size // 5 - 1
        drawn.add(frozenset(names))
    assert len(drawn) > 1, "each seed draws its own"


def test_a_single_file_is_split_into_pieces(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("".join(f"line {k} says {k * k} and {k**3}\n" for k in range(3000)))
    found = corpus.read(str(path))
    parts = found.split(0)
    assert sorted(written(torch.cat([parts.training, parts.validation, parts.held_out]))) == sorted(
        path.read_bytes()
    )
    assert len(parts.held_out) >= min(corpus.APART, found.size // 5)


def test_a_folder_a_file_and_a_glob_give_the_same_data(folder):
    glob = corpus.read(str(folder / "*.txt"))
    assert corpus.read(str(folder)).fingerprint == glob.fingerprint
    (folder / "file05.txt").write_text("changed " * 300)
    assert corpus.read(str(folder)).fingerprint != glob.fingerprint


def test_hidden_files_and_binary_files_are_left_out(folder):
    before = corpus.read(str(folder))
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("secret " * 100)
    (folder / "image.png").write_bytes(b"\x89PNG\0\0" * 100)
    assert corpus.read(str(folder)).fingerprint == before.fingerprint


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({}, "nothing in it"),
        ({"a.txt": b""}, "1 empty (a.txt)"),
        ({"a.bin": b"\0\1\2" * 9000}, "1 binary (a.bin)"),
        ({"a.txt": b"too short"}, "9 bytes of text"),
    ],
)
def test_data_that_cannot_be_used_are_refused(tmp_path, files, text):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(NormkitError) as error:
        find("text", {"data": str(tmp_path)}).corpus  # noqa: B018
    assert text in str(error.value)


def test_data_that_are_not_there_are_refused():
    with pytest.raises(NormkitError, match="no such file or folder"):
        find("text", {"data": "/no/such/place"}).fingerprint  # noqa: B018


def test_the_tables_of_text_are_what_the_entropy_says(tmp_path):
    """A byte that is a coin: one bit, whatever came before. Where every third is the sum of the two before,
    the trigram knows something, and the others nothing."""
    path = tmp_path / "coin.txt"
    coins = torch.randint(2, (200_000,), generator=torch.Generator().manual_seed(0))
    path.write_bytes(bytes((97 + coins).tolist()))
    found = find("text", {"data": str(path)}).baselines()
    assert list(found) == ["unigram", "bigram", "trigram"]
    assert all(loss == pytest.approx(math.log(2), abs=0.01) for loss in found.values())
    pairs = torch.randint(4, (60_000, 2), generator=torch.Generator().manual_seed(0))
    triples = torch.cat([pairs, pairs.sum(1, keepdim=True) % 4], dim=1)
    path.write_bytes(bytes((97 + triples.flatten()).tolist()))
    found = find("text", {"data": str(path)}).baselines()
    assert found["unigram"] == pytest.approx(math.log(4), abs=0.01)
    assert found["bigram"] == pytest.approx(math.log(4), abs=0.01)
    assert found["trigram"] == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(6), abs=0.02)


def test_padding_of_lines_is_masked():
    task = find("lines", {})
    rows, _ = task.batch(8, torch.Generator().manual_seed(0))
    model = task.model(nk.lab.Run(task="lines", depth=1, width=32)).eval()
    short = rows[rows.ne(0).sum(1).argmin()][None]
    alone, together = task._scores(model, short), task._scores(model, torch.cat([short, rows]))
    torch.testing.assert_close(alone[0], together[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("jump", ["scale", "feature", "shift"])
def test_the_stream_jumps_half_way(jump):
    task = find("stream", {"jump": jump})
    task.advance(49, 100)
    before, answers = task.held_out()[0]
    task.advance(50, 100)
    after, same = task.held_out()[0]
    assert torch.equal(answers, same)
    changed = (before != after).any(dim=0)
    assert changed.sum() == (1 if jump == "feature" else task.features)


def test_a_model_that_has_no_place_for_inner_norms_says_so():
    with pytest.raises(NormkitError, match="norms inside of the sublayer"):
        find("digits", {}).model(nk.lab.Run(task="digits", placement="subln", depth=2, width=16))


def test_files_of_the_same_name_in_different_folders_are_different_files(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for name in ("x", "y"):
            lines = [f"{folder} {name} line number {k} of the file" for k in range(500)]
            (tmp_path / folder / f"{name}.txt").write_text("\n".join(lines))
    task = find("lines", {"data": str(tmp_path), "classes": 4})
    rows, labels = task.lines
    for label in range(4):
        texts = [bytes(row.tolist()) for row in rows[labels == label]]
        assert len({text[:3] for text in texts}) == 1
    assert task.source.endswith("2,000 lines of 4 files")


def test_results_of_normkit_are_no_data(folder):
    before = corpus.read(str(folder)).fingerprint
    results = folder / "runs" / "text"
    results.mkdir(parents=True)
    (results / "runs.sqlite").touch()
    (results / "report.html").write_text("<p>not a text to learn from</p>" * 100)
    assert corpus.read(str(folder)).fingerprint == before


def test_data_under_a_hidden_folder_can_be_named(tmp_path, folder):
    hidden = tmp_path / ".cache"
    folder.rename(hidden)
    assert len(corpus.read(str(hidden)).files) == 12


def test_a_file_that_is_a_third_of_all_is_cut(folder):
    (folder / "file00.txt").write_text("".join(f"{k} and {k * k}\n" for k in range(20_000)))
    found = corpus.read(str(folder))
    parts = found.split(0)
    assert len(parts.held_out) < 2 * min(corpus.APART, found.size // 5)


def test_the_baseline_of_the_stream_is_the_best_constant():
    task = find("stream", {})
    _, answers = task.held_out()[0]
    (found,) = task.baselines().values()
    assert found == pytest.approx(answers.square().mean().item())
    assert (answers - answers.mean()).square().mean().item() == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("text", {"length": 1}),
        ("lines", {"length": 0}),
        ("lines", {"classes": 1}),
        ("stream", {"features": 0}),
    ],
)
def test_sizes_that_make_no_sense_are_refused(name, fields):
    with pytest.raises(NormkitError, match="an integer of at least"):
        find(name, fields)


def test_a_device_is_no_data():
    with pytest.raises(NormkitError, match="no such file"):
        corpus.read("/dev/zero")
