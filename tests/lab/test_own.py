"""Norms, placements and tasks as objects: known by their source, shipped to workers by value."""

import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from lab.folders import environment
from lab.own_task import Small
from torch import nn

import normkit as nk
from normkit.errors import NormkitError
from normkit.lab import own
from normkit.lab.comparison import Comparison
from normkit.lab.run import Run


class Halved(nk.RMSNorm):
    def forward(self, x):
        return 0.5 * super().forward(x)


PLACE = nk.Placement(pre=True, gate=0.5, final=True)


def small(folder, **changes):
    settings = {"task": Small(noise=0.2), "norm": ["layer", Halved], "placement": [PLACE, "pre"]}
    settings |= {"lr": 1e-2, "seeds": 2, "steps": 20, "workers": 0, "progress": False}
    return nk.lab.compare(out=folder, **{**settings, **changes})


def test_objects_are_compared_like_names_and_read_again(tmp_path):
    result = small(tmp_path)
    labels = {arm.label for arm in result.summary.arms}
    place = "Placement(pre gate=0.5 final)"
    assert labels == {f"layer · {place}", "layer · pre", f"Halved · {place}", "Halved · pre"}
    assert "norm=['layer', Halved]" in result.about["command"]
    again = Comparison.load(tmp_path)
    assert again.why == result.why
    assert {run.norm.partition("#")[0] for run, _ in again.results} == {"layer", "Halved"}


def test_objects_train_as_their_names_do(tmp_path):
    by_name = small(tmp_path / "a", task="lab.own_task:Small", noise=0.2, norm="rms", placement="pre")
    by_object = small(tmp_path / "b", norm=functools.partial(nk.RMSNorm, eps=1e-6), placement="pre")
    losses = [[o.final_loss for _, o in result.results] for result in (by_name, by_object)]
    assert losses[0] == losses[1]


def test_the_same_objects_again_train_nothing(tmp_path, monkeypatch):
    small(tmp_path)
    monkeypatch.setattr("normkit.lab.worker.measure", lambda *_, **__: pytest.fail("it trains"))
    small(tmp_path)


def test_workers_get_objects_by_value(tmp_path):
    here = small(tmp_path / "a")
    there = small(tmp_path / "b", workers=2)
    numbers = [sorted((str(run), o.final_loss) for run, o in result.results) for result in (here, there)]
    assert numbers[0] == numbers[1]


NOTEBOOK = """
import torch
from torch import nn
import normkit as nk

FACTOR = {factor}

def scaled(x):
    return FACTOR * x

class MyNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nk.RMSNorm(dim)
    def forward(self, x):
        return scaled(self.norm(x))

class MyTask(nk.lab.Task):
    def model(self, run):
        from normkit.lab.tasks.networks import mlp
        return mlp(run, 4, 1)
    def batch(self, size, generator):
        x = torch.randn(size, 4, generator=generator)
        return x, x.sum(1, keepdim=True)
    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])
    def held_out(self):
        return [self.batch(64, torch.Generator().manual_seed(0))]

if __name__ == "__main__":
    result = nk.lab.compare(MyTask(), norm=["layer", MyNorm, lambda dim: nn.LayerNorm(dim, eps=1e-3)],
        placement=[nk.Placement(pre=True), "post"], lr=1e-2, depth=2, width=16, steps=15, seeds=1,
        out={out!r}, workers=1, progress=True)
    print(sorted(arm.label for arm in result.summary.arms))
"""


def run_script(path, **values):
    path.write_text(NOTEBOOK.format(**values))
    done = subprocess.run(
        [sys.executable, str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_a_script_defines_goes_to_workers_and_is_known_by_its_source(tmp_path):
    values = {"factor": 2.0, "out": str(tmp_path / "runs")}
    first = run_script(tmp_path / "script.py", **values)
    assert "MyNorm · Placement" in first
    assert "lambda · post" in first
    again = run_script(tmp_path / "script.py", **values)
    assert "6 of them are done already" in again
    changed = run_script(tmp_path / "script.py", **{**values, "factor": 3.0})
    assert "4 of them are done already" in changed, "only the norm that uses the factor is another"


NAMED_LIKE_TORCH = """
class MyNorm(nn.Module):
    classes = ops = 3

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim * self.classes // self.ops))

    def forward(self, x):
        return x * self.weight
"""


def test_an_attribute_named_like_a_part_of_torch_goes_to_workers():
    """cloudpickle takes ``self.classes`` for torch.classes, a module of a class of its own."""
    name = own.name_of(in_main(NAMED_LIKE_TORCH, "MyNorm"), "norm")
    packed = own.pack([name])
    own.unpack(packed)
    assert own.get(name)(2).weight.shape == (2,)


def in_main(text, name):
    """As if it were typed into a notebook."""
    space = {"__name__": "__main__", "nn": nn, "nk": nk, "torch": torch}
    exec(text, space)
    return space[name]


def test_an_object_is_known_by_what_it_does_and_not_by_when_it_was_made():
    text = "C = 2\ndef helper(x):\n    return C * x\ndef norm(dim):\n    return helper(nn.LayerNorm(dim))\n"
    one, same = in_main(text, "norm"), in_main(text, "norm")
    assert own.identity(one) == own.identity(same)
    assert own.identity(one) != own.identity(in_main(text.replace("C = 2", "C = 3"), "norm"))
    assert own.identity(one) != own.identity(in_main(text.replace("C * x", "C + x"), "norm"))


def test_functions_in_one_line_and_values_in_closures_are_told_apart():
    a, b = (lambda dim: nn.LayerNorm(dim)), (lambda dim: nn.LayerNorm(dim, eps=1.0))

    def made(eps):
        return lambda dim: nn.LayerNorm(dim, eps=eps)

    names = [own.name_of(thing, "norm") for thing in (a, b, made(1e-3), made(1e-4))]
    assert len(set(names)) == 4
    assert own.name_of(made(1e-3), "norm") == names[2]


def test_placements_are_known_by_their_fields():
    assert own.name_of(nk.Placement(pre=True), "placement") == own.name_of(
        nk.Placement(pre=True), "placement"
    )
    assert own.name_of(nk.Placement(gate=0.1), "placement") != own.name_of(
        nk.Placement(gate=0.2), "placement"
    )


def test_every_placement_has_a_name_of_its_own_that_says_what_it_is():
    """Values that are the same object, as True is, were met once and then left out."""
    flags = [
        dict(zip(("pre", "out", "post"), bits, strict=True)) for bits in product([False, True], repeat=3)
    ]
    gates = [1.0, 0.5, 2, nk.placement.Learned(0.5), nk.placement.Learned(0.5, True)]
    made = [nk.Placement(**flag, gate=gate) for flag in flags for gate in gates]
    assert len({own.name_of(one, "placement") for one in made}) == len(made)
    assert own.short_name(own.name_of(nk.Placement(pre=True, skip=0.5), "placement")) == (
        "Placement(pre skip=0.5)"
    )
    assert "," not in own.name_of(nk.Placement(inner=("qkv", "output")), "placement")


@dataclass(frozen=True)
class Two:
    first: object
    second: object


def test_the_same_value_in_two_fields_is_not_lost():
    values = [True, False, None, 1, 1.0, "1", (1, 2), [1, 2], (True, True), ((), ()), frozenset("ab")]
    made = [Two(a, b) for a in values for b in values]
    assert len({own.identity(one) for one in made}) == len(made)


class Clip:
    """With a repr that does not say everything."""

    def __init__(self, k):
        self.k = k

    def __call__(self, dim):
        return nn.LayerNorm(dim, eps=self.k)

    def __repr__(self):
        return "Clip"


class Slots:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


def closed_over(value):
    return lambda dim: (value, nn.LayerNorm(dim))


class Undecorated(Small):
    """A task below a dataclass that is none itself."""

    def __init__(self, k):
        super().__init__()
        object.__setattr__(self, "k", k)


def with_inner(eps):
    return type("With", (nk.RMSNorm,), {"inner": functools.partial(nk.RMSNorm, eps=eps)})


def with_attribute(k):
    made = closed_over(None)
    made.k = k
    return made


def nearly(value):
    found = torch.ones(2000)
    found[1000] = value
    return found


CONFIG = "CONFIG = {{'eps': {}}}\ndef norm(dim):\n    return nn.LayerNorm(dim, eps=CONFIG['eps'])\n"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Clip(1e-3), Clip(5.0)),
        (Slots(1.0), Slots(2.0)),
        (closed_over(nearly(1.0)), closed_over(nearly(1e-6))),
        (closed_over(nearly(1.0).numpy()), closed_over(nearly(1e-6).numpy())),
        (closed_over(nn.Linear(2, 2)), closed_over(nn.Linear(2, 2))),
        (Undecorated(0.001), Undecorated(100.0)),
        (with_inner(1e-3), with_inner(10.0)),
        (with_attribute(1), with_attribute(2)),
        (in_main(CONFIG.format(1e-5), "norm"), in_main(CONFIG.format(100), "norm")),
    ],
    ids=["repr", "slots", "tensor", "array", "weights", "undecorated", "partial", "attribute", "global"],
)
def test_objects_that_compute_something_else_have_other_names(one, other):
    assert own.identity(one) != own.identity(other)
    assert own.identity(one) == own.identity(one)


def test_code_that_was_edited_after_its_import_is_not_taken_for_what_is_in_the_file(tmp_path):
    (tmp_path / "edited.py").write_text("GAIN = 1.0\ndef norm(dim):\n    return GAIN * dim\n")
    code = (
        "import edited, pathlib; from normkit.lab import own\n"
        "file = pathlib.Path(edited.__file__)\n"
        "file.write_text(file.read_text().replace('1.0', '0.0'))\n"
        "print(own.name_of(edited.norm, 'norm'))"
    )
    stale, fresh = (
        subprocess.run(
            [sys.executable, "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    )
    assert stale != fresh


def test_a_function_of_torch_is_known_by_its_name():
    assert "0x" not in own.identity(torch.tanh)


def test_partials_are_named_with_what_they_are_given():
    assert own.short_name(own.name_of(functools.partial(nk.RMSNorm, eps=10), "norm")) == "RMSNorm(eps=10)"


def test_an_identity_is_the_same_in_every_process():
    code = (
        "import functools, normkit as nk; from normkit.lab import own\n"
        "thing = functools.partial(nk.LayerNorm, names={'some', 'names', 'in', 'a', 'set'})\n"
        "print(own.name_of(thing, 'norm'))"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(names) == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"norm": nn.LayerNorm(4)}, "norm= got a module, LayerNorm"),
        ({"norm": 3}, "norm= got 3"),
        ({"placement": 3}, "placement= got 3"),
        ({"task": 3}, "task= got 3"),
        ({"task": nk.LayerNorm}, "task= got"),
        ({"norm": [Small]}, "norm= got"),
    ],
)
def test_what_is_no_norm_no_placement_and_no_task_is_refused(settings, text, tmp_path):
    with pytest.raises(NormkitError) as error:
        small(tmp_path, **settings)
    assert text in str(error.value)
    assert "expected:" in str(error.value)


def test_what_cannot_be_sent_to_a_worker_says_how_to_go_on(tmp_path):
    import threading

    lock = threading.Lock()

    def norm(dim):
        assert lock is not None
        return nn.LayerNorm(dim)

    with pytest.raises(NormkitError, match=r"cannot be sent to a worker[\s\S]*workers=0"):
        small(tmp_path, norm=[norm], workers=1)


def test_an_object_of_another_process_is_only_a_name():
    run = Run(norm="Gone#01234567")
    assert "Gone" in str(run)
    with pytest.raises(NormkitError, match="object of another process"):
        run.norm_factory  # noqa: B018


def test_a_result_is_shown_in_a_notebook(tmp_path):
    result = small(tmp_path)
    html = result._repr_html_()
    assert result.why.partition(":")[0] in html
    assert html.count("<tr") == 1 + len(result.summary.arms) + len(result.summary.baselines)
    assert "#" not in "".join(arm.label for arm in result.summary.arms)
    assert "Halved" in repr(result)


def test_what_is_nested_too_deeply_is_refused_and_what_repeats_is_quick():
    deep = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(NormkitError, match="nested too deeply"):
        own.name_of(closed_over(deep), "norm")
    pair = (1, 2)
    assert own.identity([pair] * 3) != own.identity([pair] * 2)
    assert own.identity(torch.eye(2).to_sparse()) != own.identity((2 * torch.eye(2)).to_sparse())
