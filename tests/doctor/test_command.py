"""``normkit doctor``: exit codes, words, JSON, fixes; and targets that do not behave."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import hugging_face
import pytest

from normkit import cli
from normkit.doctor import RULES

ROOT = Path(__file__).parents[2]
SICK = ("examples.clinic:sick", "--batch", "examples.clinic:batch")
HEALTHY = ("examples.clinic:healthy", "--batch", "examples.clinic:batch")
ODD = """
import time, torch
from torch import nn

print("a word at import")

class Loud(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        print("a word in forward")
        return self.norm(x)

class Quits(Loud):
    def forward(self, x):
        raise SystemExit(0)

class Slow(Loud):
    def forward(self, x):
        print("sleeping", flush=True)
        time.sleep(60)
        return x

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("<b>\\x1b[31m\\u202e", nn.LayerNorm(4, True))

    def forward(self, batch):
        return [layer(batch["x"]) for layer in self.children()]

class Waits(Named):
    def forward(self, batch):
        time.sleep(2)
        return super().forward(batch)

class Conv(nn.Sequential):
    def __init__(self):
        parts = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
        super().__init__(*parts)

def rows():
    return torch.arange(12.0).view(3, 4) ** 2

def as_dict():
    return {"x": rows()}

def images():
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
"""


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """In the current directory; the module is forgotten in the end."""
    path = list(sys.path)
    (tmp_path / "odd_models.py").write_text(ODD)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("odd_models", None)


def run(capsys, *arguments):
    """Exit code, stdout and stderr of ``normkit doctor ...``, in this process."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(["doctor", *arguments])
    captured = capsys.readouterr()
    return stopped.value.code or 0, captured.out, captured.err


def test_a_healthy_model_exits_with_0_and_a_sick_one_with_1(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, out, err = run(capsys, *HEALTHY)
    assert (code, err) == (0, "")
    assert out.startswith("Listener: 8 norms on 6 residual sums\n")
    assert out.endswith("\nhealthy\n")
    code, out, _ = run(capsys, *SICK)
    assert code == 1
    for found in ("NK101 wrong-skip", "NK204 absurd-eps", "NK106 unused-norm", "NK305 inverted-momentum"):
        assert found in out
    assert out.endswith("\nnot healthy: 6 errors, 4 warnings\n")


def test_a_finding_has_number_expectation_fix_place_and_the_line_of_code_in_80_columns(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    out = run(capsys, *SICK, "--select", "NK204")[1]
    line = next(
        k
        for k, text in enumerate(Path("examples/clinic.py").read_text().splitlines(), 1)
        if "norm2(x)" in text and k > 50
    )
    assert (
        f"""
error NK204 absurd-eps: layers.*.norm2 (3 of them)
    eps is no guard here: it is a bool: a flag in the position of eps.
    measured   1
    expected   an eps below 0.01 and below the variance; 1e-5 and 1e-6 are usual
    fix        write eps=1e-5, by keyword; where inputs are that small, scale
               them up first.
    called at  examples/clinic.py:{line}
               return x + self.feed_forward(self.norm2(x))
"""
        in out
    )
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("width", [50, 120])
def test_words_are_wrapped_at_the_width_of_the_terminal(width, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = run(capsys, *SICK)[1].splitlines()
    said = [
        line for line in lines if line.startswith("    ") and "clinic.py" not in line and "self." not in line
    ]
    assert max(map(len, said)) <= width
    assert max(map(len, said)) > width - 45


def test_rules_are_selected_and_ignored_by_how_their_codes_begin(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = [
        line
        for line in run(capsys, *SICK, "--select", "nk1,NK3", "--ignore", "NK106")[1].splitlines()
        if " NK" in line
    ]
    assert [line.split()[1] for line in found] == ["NK101", "NK305"]
    assert run(capsys, *SICK, "--ignore", "NK1", "--ignore", "NK2,NK3")[0] == 0
    code, out, err = run(capsys, *SICK, "--select", "NK9")
    assert (code, out) == (2, "")
    assert err.startswith("there is no rule 'NK9'.\n  expected: one of NK101, ")


def test_json_is_alone_on_stdout_whatever_the_target_prints(odd, capsys):
    for flag in (["--json"], ["--json", "-"]):
        code, out, err = run(capsys, "odd_models:Loud", "--batch", "odd_models:rows", *flag)
        assert code == 0
        found = json.loads(out)
        assert (found["model"], found["ok"], found["findings"]) == ("Loud", True, [])
        assert "a word in forward" in err


def test_json_and_page_are_written_to_files_and_named(odd, capsys):
    code, out, _ = run(
        *(capsys, "odd_models:Named", "--batch", "odd_models:as_dict"),
        *("--json", "new/doctor.json", "--html", "new/doctor.html"),
    )
    assert code == 1
    assert out.endswith("wrote new/doctor.json\nwrote new/doctor.html\n")
    found = json.loads((odd / "new/doctor.json").read_text())
    assert [f["code"] for f in found["findings"]] == ["NK204"]
    assert (odd / "new/doctor.html").read_text().startswith("<!DOCTYPE html>")
    assert sorted(p.name for p in (odd / "new").iterdir()) == ["doctor.html", "doctor.json"]


def test_a_file_that_cannot_be_written_is_refused_before_the_work(odd, capsys):
    code, out, err = run(capsys, "odd_models:Slow", "--html", str(odd))
    assert (code, out) == (2, "")
    assert f"--html got {str(odd)!r}: Is a directory." in err


def test_names_are_words_and_not_commands_to_the_terminal(odd, capsys):
    code, out, _ = run(capsys, "odd_models:Named", "--batch", "odd_models:as_dict")
    assert code == 1
    assert r"absurd-eps: <b>\x1b[31m\u202e" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("mode", ["--train", "--eval"])
def test_fixes_are_made_verified_and_told_and_nothing_else_is_left(odd, capsys, mode):
    arguments = ("odd_models:Conv", "--batch", "odd_models:images", mode)
    before = run(capsys, *arguments, "--json")[1]
    assert [f["code"] for f in json.loads(before)["findings"] if f["fixable"]] == ["NK601", "NK601"]
    code, out, _ = run(capsys, *arguments, "--fix")
    assert code == 0
    assert out.startswith(
        "Fixes, in memory; nothing on disk was changed:\n"
        "  0: its bias is dropped, and subtracted from 1.running_mean\n"
        "  3: its bias is dropped, and subtracted from 4.running_mean\n"
        "  NK601: verified, the outputs are the same to "
    )
    assert "\nWhat is left:\n" in out
    assert "NK601 redundant-bias" not in out
    found = json.loads(run(capsys, *arguments, "--fix", "--json")[1])
    assert len(found["fixes"]) == 3
    assert not any(f["code"] == "NK601" for f in found["findings"])


def test_a_fix_that_changes_what_it_must_not_is_undone_and_said(odd, capsys, monkeypatch):
    from normkit.doctor import fixing

    monkeypatch.setattr(fixing, "_rounding", lambda model: -1.0)
    out = run(capsys, "odd_models:Conv", "--batch", "odd_models:images", "--eval", "--fix")[1]
    assert "NK601 was not fixed: the edits change the outputs by " in out
    assert "info NK601 redundant-bias" in out


def test_where_nothing_can_be_fixed_it_says_so(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, out, _ = run(capsys, *HEALTHY, "--fix")
    assert code == 0
    assert out.startswith("There is no safe fix to make.\n")


def test_against_a_reference_the_differences_are_found(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, out, _ = run(capsys, *SICK, "--reference", "examples.clinic:healthy", "--select", "NK7")
    assert code == 1
    assert "NK702 eps-differs" in out


def test_a_folder_is_examined_on_the_meta_device_or_with_random_weights(odd, capsys):
    for name, words in {"llama": "", "dbrx": "It cannot be run on the meta device: "}.items():
        (odd / name).mkdir()
        config = hugging_face.build(name)[0].config
        (odd / name / "config.json").write_text(config.to_json_string(use_diff=False))
        code, out, err = run(capsys, name)
        assert (code, err) == (0, "")
        assert "No weights were read: the config alone was examined" in out
        assert words in out
        assert out.endswith("\nhealthy\n")


def test_a_rule_is_explained_by_its_code_or_its_name(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys, "--explain", "nk101")
    assert code == 0
    assert out.startswith("NK101 wrong-skip (error)\n\n")
    assert "\n    x = x + self.attention(x) " in out
    assert "Why it matters:" in out
    assert run(capsys, "--explain", "wrong-skip")[1] == run(capsys, "NK101", "--explain")[1] == out
    code, out, err = run(capsys, "--explain", "NK1011")
    assert (code, out) == (2, "")
    assert "did you mean NK101?" in err


@pytest.mark.parametrize("arguments", [[], ["--explain"], ["--explain", "all"]])
def test_without_a_target_all_rules_are_listed(arguments, capsys):
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line.startswith("NK")] == [r.code for r in RULES]
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fix"], "no model was named."),
        (["--json", "odd_models:Loud"], "fix: normkit doctor odd_models:Loud --json -"),
        ([""], "--TARGET got an empty value."),
        (["odd_models:Loud"], "fix: nk.doctor(model, batch), or --batch my_module:one_batch"),
        (
            ["odd_models:Loud", "--batch", "odd_models:images"],
            "Loud(float32[4, 3, 8, 8]) raised RuntimeError",
        ),
        (["odd_models:Quits", "--batch", "odd_models:rows"], "Quits called sys.exit(0) while it ran."),
        (["odd_models:Load"], "did you mean Loud?"),
        (["nowhere"], "there is no nowhere."),
    ],
)
def test_what_cannot_be_examined_exits_with_2_without_a_traceback(arguments, said, odd, capsys):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_bug_of_the_doctors_is_no_verdict(odd, capsys, monkeypatch):
    def fail(case):
        raise KeyError("oh")

    monkeypatch.setattr(RULES[0].module, "check", fail)
    code, out, err = run(capsys, "odd_models:Loud", "--batch", "odd_models:rows")
    assert (code, out) == (2, "")
    assert "the doctor failed on Loud: KeyError: 'oh'" in err
    assert "test_command.py:" in err


def test_help_does_not_import_torch():
    code = (
        "import sys\n"
        "from normkit.cli import main\n"
        "try:\n    main(['doctor', '--help'])\n"
        "except SystemExit:\n    print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "False"


def test_the_clinic_shows_both_reports_in_80_columns_and_writes_the_page(tmp_path):
    command = [sys.executable, "examples/clinic.py", "--html", str(tmp_path / "clinic.html")]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    *shown, page = found.stdout.splitlines()
    assert [line.split()[1] for line in shown if line.startswith("────")] == ["healthy", "sick"]
    assert "healthy" in shown
    assert "not healthy: 6 errors, 4 warnings" in shown
    assert max(map(len, shown)) <= 80
    assert page == f"page  {tmp_path / 'clinic.html'}"


def test_ctrl_c_exits_with_130_and_one_line(odd):
    command = [sys.executable, "-m", "normkit", "doctor", "odd_models:Slow", "--batch", "odd_models:rows"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=odd)
    said = [process.stderr.readline(), process.stderr.readline()]  # its words go to stderr
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert said == ["a word at import\n", "sleeping\n"]
    assert (process.returncode, out, err.lstrip("\n")) == (130, "", "normkit: interrupted\n")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_in_a_terminal_there_is_a_spinner_that_goes_and_severities_have_colours(odd):
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"COLUMNS": "70", "TERM": "xterm"}
        arguments = ["odd_models:Waits", "--batch", "odd_models:as_dict"]
        os.execv(sys.executable, [sys.executable, "-m", "normkit", "doctor", *arguments])
    out, deadline = b"", time.monotonic() + 100
    while time.monotonic() < deadline:
        try:
            out += os.read(terminal, 65536)
        except OSError:  # it has ended
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    text = out.decode()
    assert "examining Waits" in text
    assert "\x1b[?25h" in text, "the cursor is back"
    shown = text.rpartition("\x1b[2K")[2]
    assert "examining" not in shown
    assert "\x1b[1;31merror\x1b[0m NK204" in shown
    assert r"<b>\x1b[31m\u202e" in shown
