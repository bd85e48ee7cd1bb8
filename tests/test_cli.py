"""The command: its surface, frozen; what it says; how it fails."""

import contextlib
import json
import signal
import subprocess
import sys

import click
import pytest

import normkit as nk
from normkit import cli
from normkit.cli.info import DTYPES
from normkit.errors import user_error
from normkit.kernels import reference
from normkit.kernels.cpu import library

SURFACE = {  # verb -> its options; a change here belongs into the CHANGELOG
    "": ["--version"],
    "compare": [
        *(
            "--task",
            "--data",
            "--norm",
            "--placement",
            "--lr",
            "--seeds",
            "--depth",
            "--width",
            "--batch-size",
        ),
        *("--warmup", "--steps", "--budget", "--device", "--schedule", "--set", "--out", "--engine"),
        *("--address", "--workers", "--limit", "--prune", "--tensorboard"),
    ],
    "train": [
        *(
            "--task",
            "--data",
            "--norm",
            "--placement",
            "--lr",
            "--depth",
            "--width",
            "--batch-size",
            "--warmup",
        ),
        *("--steps", "--device", "--schedule", "--seed", "--set", "--out", "--resume", "--every", "--bf16"),
        *("--compile", "--shard"),
    ],
    "study": [
        *(
            "--all",
            "--long",
            "--quick",
            "--verify",
            "--ledger",
            "--page",
            "--json",
            "--seeds",
            "--out",
            "--save",
        ),
        *("--engine", "--address", "--workers"),
    ],
    "report": ["--json", "--csv", "--parquet", "--tensorboard"],
    "doctor": [
        *("--batch", "--reference", "--train", "--select", "--ignore", "--fix"),
        *("--json", "--html", "--explain"),
    ],
    "surgery": [
        *("--out", "--dry-run", "--batch", "--tied", "--alpha", "--json", "--check", "--original"),
    ],
    "verify": ["--device", "--json", "--quick"],
    "bench": ["--device", "--json", "--figure", "--quick"],
    "info": ["--json"],
}
OPS = [name for name in reference.__all__ if name in nk.functional.__all__]


def run(capsys, *arguments):
    """Exit code, stdout and stderr of ``normkit ...``, in this process."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    return stopped.value.code or 0, captured.out, captured.err


def options(command):
    return [name for p in command.params if isinstance(p, click.Option) for name in p.opts]


def test_the_verbs_and_flags_are_these():
    verbs = {name: options(verb) for name, verb in cli.command.commands.items()}
    assert {"": options(cli.command), **verbs} == SURFACE


@pytest.mark.parametrize("verb", SURFACE)
def test_help_explains_every_verb_and_flag(verb, capsys):
    code, out, _ = run(capsys, *verb.split(), "--help")
    assert code == 0
    described = [line.split("  ") for line in out.splitlines() if line.startswith("  ")]
    named = {words[1].partition(" ")[0] for words in described if len(words) > 2 and words[-1].strip()}
    assert {*SURFACE[verb], *([v for v in SURFACE if v] if not verb else [])} <= named


def test_help_does_not_import_torch():
    code = (
        "import sys\n"
        "from normkit.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    print('torch' in sys.modules, 'rich' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: normkit" in result.stdout
    assert result.stdout.splitlines()[-1] == "False False"


def test_python_dash_m_is_the_command():
    result = subprocess.run(
        [sys.executable, "-m", "normkit", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"normkit {nk.__version__}\n"


def test_info_names_every_operator_and_the_instructions_in_80_columns(capsys):
    code, out, _ = run(capsys, "info")
    assert code == 0
    lines = out.splitlines()
    header = next(line for line in lines if line.startswith("op "))
    assert header.split() == ["op", *DTYPES]
    starts = [header.index(f" {dtype}") + 1 for dtype in DTYPES]
    for op in OPS:
        (line,) = [line for line in lines if line.startswith(f"{op} ")]
        assert all(line[at - 1] == " " and line[at] != " " for at in starts), "columns line up"
    assert (library.isa() or library.MISSING.split(":")[0]) in out
    assert max(map(len, lines)) <= 80


def test_info_for_machines_says_the_same(capsys):
    code, out, _ = run(capsys, "info", "--json")
    found = json.loads(out)
    assert code == 0
    assert set(found) == {
        *("normkit", "python", "torch", "system", "cpu", "threads"),
        *("isa", "kernels_missing", "extension_missing", "gpus", "backends"),
    }
    assert found["normkit"] == nk.__version__
    assert found["isa"] == library.isa()
    assert (found["isa"] is None) == (found["kernels_missing"] is not None)
    assert sorted(found["backends"]) == sorted(OPS)
    for chosen in found["backends"].values():
        assert list(chosen) == list(DTYPES)
        assert set(chosen.values()) <= set(nk.kernels.BACKENDS)


def test_info_without_kernels_says_why_and_what_to_do(capsys, monkeypatch):
    monkeypatch.setattr(library, "MISSING", "the C++ kernels were not built: no g++ [here]")
    words = " ".join(run(capsys, "info")[1].split())
    assert "kernels none: the C++ kernels were not built: no g++ [here]" in words
    assert "fix install a C++17 compiler" in words
    assert "layer_norm aten aten" in words
    assert "aten: torch's own operators, which round as torch does" in words


def test_an_unknown_verb_gets_the_list_and_the_closest_match(capsys):
    code, out, err = run(capsys, "inof")
    assert (code, out) == (2, "")
    verbs = "bench, compare, doctor, info, report, study, surgery, train, verify"
    assert err == f"normkit has no command 'inof'.\n  expected: one of {verbs}\n  fix: normkit info\n"
    assert "fix: normkit --help" in run(capsys, "xyz")[2]


def test_an_unknown_flag_exits_with_2(capsys):
    code, out, err = run(capsys, "info", "--jsno")
    assert (code, out) == (2, "")
    assert "--jsno" in err


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (user_error("That.", expected="this", fix="so"), 2, "That.\n  expected: this\n  fix: so\n"),
        (KeyboardInterrupt(), 130, "normkit: interrupted\n"),
    ],
)
def test_an_error_is_said_without_a_traceback(raised, code, said, capsys, monkeypatch):
    def fail(**arguments):
        raise raised

    monkeypatch.setattr(cli.command.commands["info"], "callback", fail)
    got, out, err = run(capsys, "info")
    assert (got, out, err.lstrip("\n")) == (code, "", said)


WHILE_TORCH_LOADS = """
import os, sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_spec(name, *rest):
    if name == "numpy" and "torch" in sys.modules:
        PathFinder.find_spec = find
        os.kill(os.getpid(), {number})
    return find(name, *rest)
PathFinder.find_spec = find_spec
from normkit.cli import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_torch_is_loaded_ends_the_command_at_once(number):
    code = WHILE_TORCH_LOADS.format(number=int(number))
    found = subprocess.run([sys.executable, "-c", code, "info"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "normkit: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_torch_swallows_still_ends_in_one_line(number, capsys, monkeypatch):
    def fail(**arguments):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        raise ImportError("cannot load module more than once per process")

    before = signal.getsignal(number)
    monkeypatch.setattr(cli.command.commands["info"], "callback", fail)
    assert run(capsys, "info") == (130, "", "normkit: interrupted\n")
    assert signal.getsignal(number) is before
