"""A mistake in a user's own task: one clean message, and then the traceback of the user's own code."""

import pytest
from lab.test_verbs import run

from normkit.errors import NormkitError
from normkit.lab.task import imported, source_of

TASK = """
import sys
from dataclasses import dataclass
import torch
from torch import nn
import normkit as nk


def mistake(how):
    if how == "assert":
        assert len("abc") == 4
    if how == "exit":
        sys.exit("enough")
    if how == "chain":
        try:
            {}["inner"]
        except KeyError as error:
            raise TypeError("outer") from error
    if how == "refusal":
        raise nk.NormkitError("The field how is wrong.")


@dataclass(frozen=True)
class Mine(nk.lab.Task):
    where: str = ""
    how: str = "assert"

    def meet(self, where):
        if where == self.where:
            mistake(self.how)

    def __post_init__(self):
        self.meet("post_init")

    def model(self, run):
        self.meet("model")
        return nn.Linear(1, 1)

    def batch(self, size, generator):
        self.meet("batch")
        x = torch.randn(size, 1, generator=generator)
        return x, 2 * x

    def loss(self, model, batch):
        self.meet("loss")
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def held_out(self):
        self.meet("held_out")
        return [self.batch(64, torch.Generator().manual_seed(0))]

    def sample(self, model):
        self.meet("sample")
"""
MODULES = {  # text of a module -> what is said of it, and the line that is shown
    "an import": ("import no_such_module_at_all", "ModuleNotFoundError: No module named"),
    "an assertion": ("assert 1 == 2, 'they differ'", "AssertionError: they differ"),
    "sys.exit": ("import sys; sys.exit(7)", "SystemExit: 7"),
    "syntax": ("def f(:", "SyntaxError: invalid syntax"),
}
COMMANDS = {
    "train": ["train", "--steps", 2, "--out", "o"],
    "compare": ["compare", "--steps", 2, "--norm", "rms", "--seeds", 1, "--workers", 0, "--out", "o"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_mistake.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "own_mistake", raising=False)
    source_of.cache_clear()
    return tmp_path


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_cannot_be_imported_is_shown_with_its_line(name, verb, folder, capsys):
    text, said = MODULES[name]
    (folder / "does_not_load.py").write_text(text + "\n")
    code, _, err = run(capsys, *COMMANDS[verb], "--task", "does_not_load:Mine")
    assert code == 2
    head, _, below = err.partition("\n\n")
    assert head.startswith(f"task 'does_not_load:Mine' cannot be imported: {said}")
    assert f'File "{folder / "does_not_load.py"}", line 1' in below
    assert text in below
    assert "importlib" not in below
    assert "normkit" not in below.replace(str(folder), "")


def test_a_module_that_is_not_there_needs_no_traceback(folder, capsys):
    code, _, err = run(capsys, "train", "--task", "not_there_at_all:Mine")
    assert code == 2
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("verb", "where"),
    [
        *(("train", where) for where in ("post_init", "model", "batch", "loss", "held_out", "sample")),
        *(("compare", where) for where in ("post_init", "model", "batch", "loss", "held_out")),
    ],
)
def test_a_mistake_in_a_method_is_shown_from_that_method_on(verb, where, folder, capsys):
    code, _, err = run(capsys, *COMMANDS[verb], "--task", "own_mistake:Mine", "--set", f"where={where}")
    assert code == 2
    head, _, below = err.partition("\n\n")
    assert "AssertionError\n  expected: a task own_mistake:Mine that trains\n  fix: look at" in head
    assert below.startswith("Traceback (most recent call last):\n")
    assert f'self.meet("{where}")' in below
    assert 'assert len("abc") == 4' in below
    assert below.count("File ") == below.count(str(folder)), "and none of our own frames"


def test_sys_exit_and_a_chain_of_errors_are_shown_too(folder, capsys):
    own = [*COMMANDS["train"], "--task", "own_mistake:Mine", "--set", "where=model"]
    code, _, err = run(capsys, *own, "--set", "how=exit")
    assert code == 2
    assert "SystemExit: enough" in err
    assert 'sys.exit("enough")' in err
    code, _, err = run(capsys, *own, "--set", "how=chain")
    assert code == 2
    assert "KeyError: 'inner'" in err
    assert "direct cause" in err
    assert "TypeError: outer" in err


@pytest.mark.parametrize("where", ["post_init", "loss", "held_out"])
def test_an_error_of_normkits_kind_keeps_its_message(where, folder, capsys):
    own = ["--task", "own_mistake:Mine", "--set", f"where={where}", "--set", "how=refusal"]
    code, _, err = run(capsys, *COMMANDS["train"], *own)
    assert code == 2
    assert err.endswith(": The field how is wrong.\n")
    assert "Traceback" not in err


def test_a_file_with_the_name_of_another_module_is_to_be_renamed(folder):
    (folder / "queue.py").write_text("Mine = 1\n")
    with pytest.raises(NormkitError, match=r"module queue has no 'Mine'[\s\S]*fix: rename queue.py"):
        imported("queue:Mine", what="task")
    with pytest.raises(NormkitError, match=r"has no 'Other'[\s\S]*expected: Other in .*own_mistake.py$"):
        imported("own_mistake:Other", what="task")


@pytest.mark.parametrize("name", ["own_mistake.py", "./own_mistake.py"])
def test_the_name_of_a_file_is_told_from_that_of_a_module(name, folder):
    with pytest.raises(NormkitError, match=r"fix: name the module, and not its file: own_mistake:"):
        imported(f"{name}:Mine", what="task")


def test_a_task_that_a_package_passes_on_counts_with_its_own_source(folder):
    package = folder / "passing_on"
    package.mkdir()
    (package / "__init__.py").write_text("from .inside import Mine\n")
    (package / "inside.py").write_text(TASK)
    assert imported("passing_on:Mine", what="task").__name__ == "Mine"
    assert "class Mine" in source_of("passing_on:Mine")
    assert "from .inside import" in source_of("passing_on:Mine")


KINDS = {  # a method that gives what it must not, and what is said of it
    "loss of each row": (
        "loss",
        "(model(batch[0]) - batch[1]) ** 2",
        "loss() of the task gave a tensor of shape (",
    ),
    "loss as a number": ("loss", "1.5", "loss() of the task gave float 1.5"),
    "loss without a gradient": ("loss", "model(batch[0]).mean().detach()", "a tensor without a gradient"),
    "no weights": ("model", "nn.Identity()", "has no parameters to train"),
    "nothing held out": ("held_out", "None", "held_out() of the task gave None"),
    "a number for baselines": ("baselines", "3", "baselines() of the task gave 3"),
    "a baseline that is NaN": ("baselines", "{'silly': float('nan')}", "gave NaN for 'silly'"),
    "no division": ("split", "None", "split() of the task gave None"),
    "numbers of nobody's": (
        "batch",
        "(torch.randn(size, 1), torch.randn(size, 1))",
        "another batch for a generator",
    ),
}
ARGUMENTS = {"loss": "model, batch", "model": "run", "split": "seed", "batch": "size, generator"}


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_method_that_gives_something_else_is_named_before_the_start(kind, verb, folder, capsys):
    method, value, text = KINDS[kind]
    changed = f"{TASK}\n\nclass Other(Mine):\n    def {method}(self, {ARGUMENTS.get(method, '*_')}):\n"
    (folder / "own_mistake.py").write_text(f"{changed}        return {value}\n")
    code, out, err = run(capsys, *COMMANDS[verb], "--task", "own_mistake:Other")
    assert code == 2
    assert text in err
    assert "Traceback" not in err
    assert "plan " not in out or "loss" in method or "model" in method


NORMS = {
    "shape": ("x[..., 1:]", "gave the shape (2, 3, 7) for (2, 3, 8)"),
    "kind": ("(x, x)", "gave a tuple"),
    "NaN": ("x * float('nan')", "gave NaN or inf for random numbers"),
}


@pytest.mark.parametrize("kind", NORMS)
def test_a_norm_that_gives_something_else_is_named(kind, folder, capsys):
    value, text = NORMS[kind]
    norm = f"class Norm(nn.LayerNorm):\n    def forward(self, x):\n        return {value}\n"
    (folder / "own_mistake.py").write_text(f"from torch import nn\n\n{norm}")
    sizes = ["--width", 8, "--depth", 1, "--lr", "1e-3", "--placement", "pre"]
    task = ["--task", "digits", "--steps", 2, "--seeds", 1, "--workers", 0, "--out", "o"]
    code, _, err = run(capsys, "compare", *task, *sizes, "--norm", "own_mistake:Norm")
    assert code == 2
    assert f"The norm own_mistake:Norm {text}" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("held_out", "torch.utils.data.TensorDataset(torch.ones(4, 8, 1), torch.ones(4, 8, 1))"),
        ("held_out", "(super(Other, self).held_out()[k] for k in range(1))"),
        ("baselines", "[('a rule', 3.0)]"),
    ],
)
def test_what_can_be_used_is_not_refused(method, value, folder, capsys):
    changed = f"{TASK}\n\nclass Other(Mine):\n    def {method}(self):\n        return {value}\n"
    (folder / "own_mistake.py").write_text(changed)
    code, _, err = run(capsys, *COMMANDS["compare"], "--task", "own_mistake:Other")
    assert code == 0, err


def test_a_norm_is_not_blamed_for_what_its_task_does(folder, capsys):
    """In a task of one's own a norm may give what it likes."""
    (folder / "own_mistake.py").write_text(
        f"{TASK}\n\nclass Two(nn.LayerNorm):\n    def forward(self, x):\n        return x, x\n"
    )
    other = ["--task", "own_mistake:Mine", "--set", "where=loss", "--norm", "own_mistake:Two"]
    code, _, err = run(capsys, *COMMANDS["compare"], *other)
    assert code == 2
    assert "AssertionError" in err
    assert "The norm" not in err


def test_a_norm_that_hangs_has_the_limit_of_a_run(folder, capsys):
    (folder / "own_mistake.py").write_text(
        "import time\nfrom torch import nn\n\nclass Slow(nn.LayerNorm):\n"
        "    def forward(self, x):\n        time.sleep(60)\n"
    )
    task = ["--task", "digits", "--steps", 2, "--seeds", 1, "--workers", 0, "--out", "o", "--limit", 2]
    code, _, err = run(capsys, "compare", *task, "--norm", "own_mistake:Slow", "--depth", 1)
    assert code == 2
    assert "longer than its limit of 2 seconds" in err
