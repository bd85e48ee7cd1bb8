"""What is kept apart is new: no file, no copy of one and no long stretch of text is on both sides; and no
model sees what it is to predict."""

import math
import os
import random

import numpy as np
import pytest
import torch
from torch import nn

import normkit as nk
from normkit.errors import NormkitError
from normkit.lab import own
from normkit.lab.causality import leak_of
from normkit.lab.judging import baselines_of, judged_by, losses, mean_over_rows
from normkit.lab.measuring import measure
from normkit.lab.run import Run
from normkit.lab.task import find, row_count
from normkit.lab.tasks import corpus
from normkit.lab.tasks.copies import LENGTH, copied
from normkit.lab.tasks.counts import table_losses


def text(seed, size):
    """Words that nobody else has written."""
    generator = torch.Generator().manual_seed(seed)
    letters = torch.randint(97, 123, (size,), generator=generator)
    letters[torch.rand(size, generator=generator) < 0.15] = 32
    return bytes(letters.tolist())


def as_bytes(content):
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def test_forty_texts_forty_links_to_them_and_forty_binaries_are_forty_texts(tmp_path):
    for k in range(40):
        (tmp_path / f"text{k:02}").write_bytes(text(k, 2000))
        (tmp_path / f"text{k:02}.u8").symlink_to(tmp_path / f"text{k:02}")
        (tmp_path / f"text{k:02}.dat").write_bytes(b"\0\1\2\3" * 200 + bytes([k]))
    found = corpus.read(str(tmp_path))
    assert len(found.files) == 40
    assert "0.08 MB in 40 files" in found.words
    assert "40 with the content of another (text00.u8, text01.u8, text02.u8 and 37 more)" in found.words
    assert "40 binary (text00.dat, text01.dat, text02.dat and 37 more)" in found.words
    for seed in range(3):
        parts = found.split(seed)
        assert not copied(parts.held_out, parts.training).any()


def test_what_could_not_be_read_is_named(tmp_path):
    for k in range(12):
        (tmp_path / f"{k}.txt").write_bytes(text(k, 3000))
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    (tmp_path / "nothing.txt").write_bytes(b"  \n")
    (tmp_path / "elsewhere").symlink_to(tmp_path.parent)
    os.mkfifo(tmp_path / "pipe")
    words = corpus.read(str(tmp_path)).words
    assert "1 linked folder (elsewhere)" in words
    assert "1 no plain file (pipe)" in words
    assert "gone.txt" in words
    assert "loop.txt" in words
    assert "1 empty (nothing.txt)" in words


def test_a_long_copy_is_found_wherever_it_starts_and_a_short_one_is_not():
    one, other = bytearray(text(0, 5000)), bytearray(text(1, 5000))
    one[1234 : 1234 + 200] = other[77 : 77 + 200]
    one[4000 : 4000 + LENGTH - 4] = other[3000 : 3000 + LENGTH - 4]
    marks = copied(as_bytes(one), as_bytes(other))
    assert marks[1234 : 1234 + 200].all()
    assert int(marks.sum()) <= 202, "a byte beside it may be the same by chance"


def test_windows_that_are_copies_do_not_judge(tmp_path):
    """Every file begins with the same licence."""
    licence = text(99, 3000)
    for k in range(12):
        (tmp_path / f"{k}.txt").write_bytes(licence + text(k, 4000))
    task = find("text", {"data": str(tmp_path)}).split(1)
    training = task.parts.training
    for windows in (torch.cat(task.held_out()), torch.cat(task.validation())):
        assert len(windows) >= 50
        assert not copied(windows.flatten().to(torch.uint8), training).any()
    assert 0.3 < task.parts.copied < 0.6


def test_a_text_that_is_all_copies_is_refused(tmp_path):
    for k in range(20):
        (tmp_path / f"{k}.txt").write_bytes(text(k % 2, 4000) + bytes([97 + k]))
    with pytest.raises(nk.NormkitError, match="occurs in the rest, too"):
        find("text", {"data": str(tmp_path)}).held_out()


def test_validation_and_what_judges_share_no_row_and_change_with_the_seed():
    for name in ("text", "digits", "lines", "series"):
        rows = []
        for seed in (0, 1):
            task = find(name, {}).split(seed)
            choosing, judging = judged_by(task, seed)
            first = [
                {_key(batch, k) for batch in part for k in range(row_count(batch))}
                for part in (choosing, judging)
            ]
            assert len(first[0] & first[1]) <= 0.02 * len(first[1]), name
            assert len(judging) >= 10, "parts, for the sampling error"
            rows.append(frozenset(first[1]))
        assert rows[0] != rows[1], name


def _key(batch, k):
    from normkit.lab.task import tensors

    return b"".join(t[k].contiguous().flatten().view(torch.uint8).numpy().tobytes() for t in tensors(batch))


def test_tables_of_counts_are_witten_and_bells():
    """By hand, for the text ababac: after "ba" come b and c, once each; after "a", b twice and c once."""
    losses = table_losses(as_bytes(b"ababac"), as_bytes(b"bac")[None].long())
    single = {97: 4 / 262, 98: 3 / 262, 99: 2 / 262}
    after_b = (2 + 1 * single[97]) / (2 + 1)
    after_a = (1 + 2 * single[99]) / (3 + 2)
    after_ba = (1 + 2 * after_a) / (2 + 2)
    expected = {"unigram": (97, 99), "bigram": (after_b, after_a), "trigram": (after_b, after_ba)}
    for name, pair in expected.items():
        wanted = [single[p] if isinstance(p, int) else p for p in pair]
        assert abs(losses[name] + sum(map(math.log, wanted)) / 2) < 1e-9, name


def language_model(norm, **options):
    torch.manual_seed(0)
    return nk.LanguageModel(vocab=256, dim=16, depth=2, heads=2, context=16, norm=norm, **options)


def test_batch_norm_sees_the_future_and_layer_norm_does_not():
    ids = torch.randint(0, 256, (4, 16), generator=torch.Generator().manual_seed(0))
    assert leak_of(language_model("layer"), ids) == 0
    assert leak_of(language_model("rms", dropout=0.2), ids) == 0, "dropout is no leak"
    assert leak_of(language_model("batch"), ids) > 1e-3


class Seeing(nn.LayerNorm):
    """Each vector gets a part of one that comes later, by the method of those that inherit."""

    def forward(self, x):
        return super().forward(self.seen(x))


class Prefix(Seeing):
    def seen(self, x):
        return torch.cat([x[:, :8] - x[:, :8].mean(1, keepdim=True), x[:, 8:]], dim=1)


class Chunks(Seeing):
    """Of five positions; the last chunk stays as it is."""

    def seen(self, x):
        whole = (x.shape[1] - 1) // 5 * 5
        parts = x[:, :whole].unflatten(1, (-1, 5)) if whole else x[:, :0].unflatten(1, (0, 5))
        return torch.cat([(parts - parts.mean(2, keepdim=True)).flatten(1, 2), x[:, whole:]], dim=1)


class NextButLast(Seeing):
    def seen(self, x):
        return torch.cat([x[:, :-2] + x[:, 1:-1].roll(1, -1), x[:, -2:]], dim=1)


class WithGradients(Seeing):
    def seen(self, x):
        return x + x.roll(-1, 1) if torch.is_grad_enabled() else x


class InEvaluation(Seeing):
    def seen(self, x):
        return x if self.training else x + x.roll(-1, 1)


@pytest.mark.parametrize("norm", [Prefix, Chunks, NextButLast, WithGradients, InEvaluation])
def test_a_norm_that_sees_the_future_in_its_own_way_is_found(norm):
    for length in (16, 200):
        ids = torch.randint(0, 256, (4, length), generator=torch.Generator().manual_seed(0))
        torch.manual_seed(0)
        sizes = {"vocab": 256, "dim": 16, "depth": 1, "heads": 2, "context": length}
        assert leak_of(nk.LanguageModel(**sizes, norm=norm), ids) > 1e-3
        assert leak_of(nk.LanguageModel(**sizes, norm="layer"), ids) == 0
    assert leak_of(language_model("batch"), ids[:, :1]) == 0, "nothing comes before the first token"


class Remembering(nn.LayerNorm):
    """It divides by a mean of earlier steps, which it keeps in a buffer."""

    def __init__(self, dim):
        super().__init__(dim)
        self.register_buffer("mean", torch.ones(()))

    def forward(self, x):
        y = super().forward(x) / self.mean
        if self.training:
            self.mean.mul_(0.5).add_(0.5 * x.detach().abs().mean())
        return y


class Counting(nn.LayerNorm):
    steps = 0

    def forward(self, x):
        self.steps += 1
        return super().forward(x) * (1 + 1 / self.steps if self.training else 1)


class Noisy(nn.LayerNorm):
    def forward(self, x):
        noise = random.random() + np.random.rand() if self.training else 0.0
        return super().forward(x) + noise


@pytest.mark.parametrize("norm", [Remembering, Counting, Noisy])
def test_a_norm_that_changes_with_time_sees_no_future(norm):
    ids = torch.randint(0, 256, (4, 16), generator=torch.Generator().manual_seed(0))
    before = random.getstate(), np.random.get_state()[1].tolist()
    assert leak_of(language_model(norm), ids) == 0
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_logits_that_are_masked_hide_no_leak():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = language_model("batch")

        def forward(self, ids):
            return self.inner(ids).masked_fill(torch.arange(256) > 200, -torch.inf)

    assert leak_of(Masked(), torch.randint(0, 256, (4, 16))) > 1e-3


def test_the_causality_check_leaves_the_model_as_it_was():
    model = language_model("batch").eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    leak_of(model, torch.zeros(2, 16, dtype=torch.long))
    assert not model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_an_arm_that_sees_the_future_is_refused_end_to_end(tmp_path):
    result = nk.lab.compare(
        norm="layer,batch",
        placement="peri",
        lr=1e-2,
        steps=30,
        depth=2,
        width=32,
        seeds=2,
        workers=0,
        progress=False,
        out=tmp_path,
    )
    leaking = next(arm for arm in result.summary.arms if arm.values["norm"] == "batch")
    assert (leaking.ending, leaking.can_win) == ("leaks", False)
    assert "batch · peri sees the future" in result.why
    assert result.winner is not leaking
    page = (tmp_path / "report.html").read_text()
    assert "sees the future" in page


def test_a_task_that_cannot_be_learnt_gives_no_answer(tmp_path):
    """Labels that have nothing to do with the inputs."""

    class Noise(nk.lab.Task):
        def model(self, run):
            from normkit.lab.tasks.networks import mlp

            return mlp(run, 4, 3)

        def batch(self, size, generator):
            x = torch.randn(size, 4, generator=generator)
            return x, torch.randint(0, 3, (size,), generator=generator)

        def loss(self, model, batch):
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        def held_out(self):
            return [self.batch(256, torch.Generator().manual_seed(7))]

    result = nk.lab.compare(
        *(Noise(),),
        norm=["layer", "rms"],
        placement="pre",
        lr=[1e-3, 1e-2],
        depth=2,
        width=16,
        batch_size=16,
        steps=60,
        seeds=3,
        workers=0,
        progress=False,
        out=tmp_path,
    )
    assert (result.state, result.winner) == ("none", None)
    assert result.why.startswith("Nothing learnt anything: the best, ")
    assert "a fitted constant gets 1.1" in result.why or "a fitted constant gets 1.0" in result.why
    assert {arm.ending for arm in result.summary.arms} <= {"at baseline", "diverged"}


def test_a_fitted_constant_is_the_best_answer_that_ignores_its_input():
    class Line(nk.lab.Task):
        def model(self, run):
            return nn.Linear(2, 1)

        def batch(self, size, generator):
            x = torch.randn(size, 2, generator=generator)
            return x, 5 + x.sum(1, keepdim=True)

        def loss(self, model, batch):
            return nn.functional.mse_loss(model(batch[0]), batch[1])

        def held_out(self):
            return [self.batch(2000, torch.Generator().manual_seed(3))]

    task = Line()
    _, judging = judged_by(task, 0)
    (found,) = baselines_of(task, task.model(Run()), judging).values()
    assert abs(found - 2.0) < 0.2, "the variance of the answers"


def test_short_runs_are_judged_by_validation_alone():
    run = Run(task="digits", depth=2, width=16, batch_size=8, steps=20, until=5)
    outcome = measure(run, run.build_task())
    assert outcome.status == "stopped"
    assert outcome.judged == []
    assert outcome.final_loss == outcome.validation[-1][1]


def test_a_division_that_leaves_nothing_new_is_found_before_the_training(tmp_path, monkeypatch):
    """Two texts, each many times with another end: what a seed keeps apart, the rest has too."""
    for k in range(24):
        (tmp_path / f"{k}.txt").write_bytes(text(k // 12, 3000) + text(k, 40))
    monkeypatch.setattr("normkit.lab.worker.measure", lambda *_, **__: pytest.fail("it trains"))
    with pytest.raises(nk.NormkitError, match="occurs in the rest, too"):
        nk.lab.compare(data=str(tmp_path), steps=2, seeds=4, workers=0, progress=False, out=tmp_path / "o")


def test_batches_of_different_length_count_by_their_rows():
    batches = [torch.zeros(30, 2), torch.zeros(10, 2)]
    assert mean_over_rows([1.0, 5.0], batches) == pytest.approx(2.0)


@pytest.mark.parametrize("length", [32, 40, 512])
def test_a_model_that_is_the_unigram_table_gets_the_unigrams_loss(length):
    task = find("text", {"length": length}).split(1)
    counts = torch.bincount(task.parts.training.long(), minlength=256).double() + 1e-3

    class Table(nn.Module):
        def forward(self, ids):
            return counts.log().expand(*ids.shape, 256)

    _, judging = judged_by(task, 1)
    sizes = [len(batch) for batch in judging]
    assert max(sizes) - min(sizes) <= 1, "parts are compared with each other"
    assert mean_over_rows(losses(task, Table(), judging), judging) == pytest.approx(
        task.baselines()["unigram"], abs=2e-3
    )


@pytest.mark.parametrize("name", ["digits", "lines", "stream"])
def test_baselines_are_those_of_the_rows_that_judge(name):
    task = find(name, {}).split(0)
    choosing, judging = judged_by(task, 0)
    assert sum(map(row_count, judging)) == sum(map(row_count, task.held_out()))
    answers = torch.cat([batch[1] for batch in judging])
    (found,) = task.baselines().values()
    if name == "stream":
        assert found == pytest.approx(answers.square().mean().item(), rel=1e-5)
    else:
        kept = {tuple(row) for batch in choosing for row in batch[0].flatten(1).tolist()}
        assert sum(tuple(row) in kept for batch in judging for row in batch[0].flatten(1).tolist()) < 9
        assert torch.equal(answers, torch.cat([batch[1] for batch in task.held_out()]))


def test_a_leak_behind_a_gate_that_opens_in_training_is_found():
    gated = nk.Placement(pre=True, gate=nk.placement.Learned(0.0), final=True)
    run = Run(norm="batch", placement=own.name_of(gated, "placement"), depth=2, width=16, steps=20, lr=1e-2)
    assert measure(run, run.build_task()).leak > 0


def test_a_window_that_is_too_long_is_told_from_a_text_of_copies(tmp_path):
    generator = torch.Generator().manual_seed(0)
    path = tmp_path / "short.txt"
    path.write_bytes(bytes((97 + torch.randint(26, (22_000,), generator=generator)).tolist()))
    with pytest.raises(NormkitError, match="length= got 3500"):
        find("text", {"data": str(path), "length": 3500}).held_out()
