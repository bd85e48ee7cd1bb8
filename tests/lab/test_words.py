"""What is said is said as it is: no word of a user's, or of a folder's, is a command to the terminal."""

import ast
import io
import subprocess
import sys
from pathlib import Path

import pytest
from lab.folders import environment, forge

import normkit
from normkit import cli
from normkit.lab.console import plain_console, visible

ODD = [
    "[/x]",
    "[bold]loud",
    "[link=http://a]b[/link]",
    ":smile:",
    "\x1b[31mred",
    "a\rb",
    "\x9b2J",
    "\u202eabc",
]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return stopped.value.code or 0, captured.out, captured.err


@pytest.fixture(autouse=True)
def a_wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("word", ODD)
def test_a_word_is_printed_as_it_is(word, capsys, tmp_path):
    forge(
        tmp_path, options=(("name", word),), about={"axes": {"norm": ["layer", "rms"], "name": [word, "b"]}}
    )
    code, out, err = run(capsys, "report", tmp_path)
    assert (code, err) == (0, "")
    assert f"name {visible(word)}" in out
    assert not {"\x1b", "\r", "\x9b", "\u202e"} & set(out)


@pytest.mark.parametrize("word", ODD[:2])
def test_a_comparison_over_such_words_ends_and_can_be_reported(word, capsys, tmp_path):
    task = ["--task", "lab.own_task:Named", "--steps", 2, "--seeds", 1, "--norm", "rms", "--lr", "1e-2"]
    code, out, err = run(
        capsys, "compare", *task, "--workers", 0, "--set", f"name={word},b", "--out", tmp_path
    )
    assert (code, err) == (0, "")
    assert out.count(f"name {visible(word)}") >= 2
    assert run(capsys, "report", tmp_path)[0] == 0


def test_an_error_is_no_command_to_the_terminal(capsys):
    code, _, err = run(capsys, "compare", "--norm", "\x1b[2J")
    assert code == 2
    assert "\x1b" not in err


def test_words_that_are_no_text_at_all_are_printed_too(tmp_path):
    """Bytes of a command line that are not UTF-8 become lone surrogates, which no stream takes."""
    options = ["--task", "lab.own_task:Named", "--steps", "2", "--seeds", "1", "--norm", "rms"]
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "normkit",
            "compare",
            *options,
            "--workers",
            "0",
            "--set",
            b"name=\xff,b",
            "--out",
            b"o\xfe",
        ],
        capture_output=True,
        env=environment(),
        cwd=tmp_path,
        check=False,
    )
    assert b"Traceback" not in result.stderr, result.stderr.decode()
    assert result.returncode == 0, result.stderr.decode()
    assert rb"name \udcff" in result.stdout


def test_a_terminal_of_few_letters_gets_them(tmp_path):
    forge(tmp_path)
    result = subprocess.run(
        [sys.executable, "-m", "normkit", "report", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**environment(), "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "held-out loss 2.500" in result.stdout


def test_a_console_leaves_words_alone():
    file = io.StringIO()
    plain_console(file=file).print("[red]:x: 1 [/y] \x07\n\ttwo")
    assert file.getvalue() == "[red]:x: 1 [/y] \\x07\n\ttwo\n".expandtabs()


def test_every_console_is_a_plain_one():
    """rich reads markup unless it is told not to; one place tells it."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in Path(normkit.__file__).parent.rglob("*.py")
        if path.name != "console.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", "")) == "Console"
    ]
    assert found == []
