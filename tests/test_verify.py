"""``normkit verify``: right on this machine, loud where something is wrong, complete in its file."""

import json
import math
import re
import warnings
from types import SimpleNamespace

import pytest
import torch
from test_cli import run

from normkit.kernels import BACKENDS, fast
from normkit.kernels.cpu import library
from normkit.verify import memory, running
from normkit.verify.cases import DTYPES, Case, cases
from normkit.verify.checking import EXACT, check_case, check_memory
from normkit.verify.norms import NORMS
from normkit.verify.truth import error

CPU = torch.device("cpu")
CHECKS = {"accuracy", "gradients", "hard inputs", "same bits twice", "same in any batch", "memory"}


def few(monkeypatch, *kept):
    """Only these cases, and no memory."""
    monkeypatch.setattr(running, "cases", lambda quick: iter(kept))
    monkeypatch.setattr(running, "MEMORY_DTYPES", ())


def test_the_cpu_passes_and_the_file_holds_everything(capsys, tmp_path):
    path = tmp_path / "new" / "verify.json"
    code, out, _ = run(capsys, "verify", "--device", "cpu", "--quick", "--json", str(path))
    lines = out.splitlines()
    found = json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert code == 0, out
    assert lines[-1] == f"{len(found['rows'])} passed, 0 failed"
    assert (found["passed"], found["failed"]) == (len(found["rows"]), 0)
    assert {"device", "torch", "triton", "normkit", "cuda", "hip", "cpu", "python", "os"} <= set(
        found["machine"]
    )
    assert found["machine"]["device"] == "cpu"
    for norm in NORMS:
        own = [row for row in found["rows"] if row["norm"] == norm]
        assert CHECKS - {row["check"] for row in own} <= (
            {"same in any batch"} if norm == "batch, train" else set()
        )
        assert {row["dtype"] for row in own} == set(DTYPES)
    for row in found["rows"]:
        assert row["backend"] in BACKENDS
        assert row["bound"] is not None
        assert row["value"] <= row["bound"]


def test_the_table_lines_up_in_80_columns_and_names_backend_and_bound(capsys, monkeypatch):
    few(monkeypatch, Case("layer", (3, 7), "fp32"), Case("group", (2, 6, 3, 3), "bf16", mask=True))
    out = run(capsys, "verify", "--device", "cpu")[1]
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    (head,) = [line for line in lines if line.startswith("norm  ")]
    assert head.split() == ["norm", "check", "by", "passed", "worst", "bound"]
    (line,) = [line for line in lines if re.match(r"layer +accuracy", line)]
    assert line[head.index("by") :].split()[0] == ("cpu" if library.MISSING is None else "aten")
    assert line.split()[-1] == "1e-05" or library.MISSING is not None
    assert len(line.rstrip()) == len(head.rstrip()), "columns line up on the right"


@pytest.mark.skipif(
    library.MISSING is not None, reason="it is the short way to the CPU kernels that is spoilt"
)
@pytest.mark.parametrize("off", [1e-3, math.nan])
def test_a_wrong_kernel_fails_with_1_and_says_where(off, capsys, monkeypatch, tmp_path):
    right = fast.layer_norm
    monkeypatch.setattr(fast, "layer_norm", lambda *call: (y := right(*call)) is None or y + off)
    few(monkeypatch, Case("layer", (9, 64), "fp32"), Case("rms", (9, 64), "fp32"))
    path = tmp_path / "verify.json"
    code, out, _ = run(capsys, "verify", "--device", "cpu", "--json", str(path))
    words = " ".join(out.split())
    assert code == 1
    assert "failed: layer, accuracy, 9x64, fp32, by cpu: " in words
    assert "(y is the worst)" in words
    assert "rms, accuracy, " not in words
    assert out.splitlines()[-1].endswith(" failed")
    assert json.loads(path.read_text())["failed"] > 0


def test_a_kernel_that_raises_has_failed(monkeypatch):
    def fail(*call):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(fast, "rms_norm", fail)
    (result,) = check_case(Case("rms", (9, 64), "fp32"), CPU)
    assert (result.check, result.status) == ("runs", "failed")
    assert result.note == "RuntimeError: no such instruction"


@pytest.mark.skipif(library.MISSING is not None, reason="kernels of ours promise bits")
def test_bits_that_differ_from_call_to_call_or_batch_to_batch_are_seen(monkeypatch):
    right, calls = fast.rms_norm, []

    def drifting(*call):
        calls.append(1)
        return right(*call) * (1 + 2e-7 * len(calls))

    monkeypatch.setattr(fast, "rms_norm", drifting)
    failed = {r.check for r in check_case(Case("rms", (9, 64), "fp32"), CPU) if r.status == "failed"}
    assert failed == {"same bits twice", "same in any batch"}


@pytest.mark.skipif(library.MISSING is not None, reason="kernels of ours promise memory")
def test_memory_that_nobody_needs_is_seen(monkeypatch):
    assert check_memory("layer", "fp32", CPU).status == "passed"
    right = fast.layer_norm
    monkeypatch.setattr(fast, "layer_norm", lambda x, *call: right(x.clone(), *call))
    result = check_memory("layer", "fp32", CPU)
    assert result.status == "failed"
    assert result.value == pytest.approx(2, abs=0.1)


def test_a_gpus_allocator_is_asked_for_the_peak_above_what_was_there():
    """With a stand-in: there is no GPU here."""
    now, peak = [100], [900]
    module = SimpleNamespace(
        synchronize=lambda device: None,
        reset_peak_memory_stats=lambda device: peak.__setitem__(0, now[0]),
        memory_allocated=lambda device: now[0],
        max_memory_allocated=lambda device: peak[0],
    )
    assert memory._by_allocator(lambda: peak.__setitem__(0, 164), module, torch.device("cuda:0")) == 64


def test_where_torch_computes_the_bound_is_torchs_and_the_line_says_so(capsys, monkeypatch):
    monkeypatch.setattr(library, "MISSING", "tried without")
    for name in ("add_layer_norm", "add_rms_norm", "channels", "layer_norm", "rms_norm"):
        monkeypatch.setattr(fast, name, lambda *call: None)
    few(
        monkeypatch,
        Case("layer", (9, 768), "fp32", mean=1e6),
        Case("batch, train", (5, 6, 7, 9), "fp32", mask=True),
    )
    code, out, err = run(capsys, "verify", "--device", "cpu")
    (line,) = [line for line in out.splitlines() if re.match(r"layer +accuracy", line)]
    assert code == 0
    assert re.search(r"aten +1/1 +\de-0\d +torch's, \de-0\d", line)
    assert re.search(r"layer +same bits twice +aten +1/1 +\d +–", out)
    assert re.search(r"batch, train +accuracy +reference +1/1 +\de-\d\d +1e-05", out), (
        "a mask is the reference's"
    )
    assert err == "", "the lines say it, a warning need not"


def test_an_empty_input_of_every_norm_is_right_where_torch_computes(monkeypatch):
    """torch's own instance_norm fails there."""
    monkeypatch.setattr(library, "MISSING", "tried without")
    for name in ("add_layer_norm", "add_rms_norm", "channels", "layer_norm", "rms_norm"):
        monkeypatch.setattr(fast, name, lambda *call: None)
    empty = [case for case in cases(quick=True) if case.hard == "empty"]
    assert len(empty) == len(NORMS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        results = [result for case in empty for result in check_case(case, CPU)]
    assert [result for result in results if result.status != "passed"] == []


def test_a_device_that_is_not_here_is_named_with_those_that_are(capsys):
    for name in ("cuda:77", "meta", "gpu", "hpu"):
        code, out, err = run(capsys, "verify", "--device", name)
        assert (code, out) == (2, "")
        assert err.startswith(f"--device got '{name}', which is not on this machine.\n  expected: one of ")
        assert "cpu\n  fix: leave --device away" in err
    assert "fix: leave it out" in run(capsys, "verify", "--device", "")[2]


def test_a_file_that_cannot_be_written_is_said_before_the_work(capsys, tmp_path):
    code, _, err = run(capsys, "verify", "--json", str(tmp_path))
    assert code == 2
    assert err.startswith("--json got ")
    assert "expected: a file that can be written" in err


def test_the_error_counts_what_rounding_does_not_explain():
    true = torch.tensor([1.0, 3.0, -300.0], dtype=torch.float64)
    for dtype in DTYPES.values():
        unit = torch.tensor([1.0, 2.0, 256.0], dtype=torch.float64) * torch.finfo(dtype).eps
        assert error(true.to(dtype), true + 0.49 * unit) == 0
        assert error(true.to(dtype), true + 0.6 * unit) > 0
        assert error((true + 2 * unit).to(dtype), true) == pytest.approx(
            1.5 * torch.finfo(dtype).eps, rel=0.4
        )
    nan = torch.tensor([1.0, math.nan, -300.0])
    assert error(nan, true) == math.inf
    assert error(true.float(), nan.double()) == math.inf
    assert error(nan, nan.double()) == 0
    assert error(torch.tensor([math.inf]), torch.tensor([1e39], dtype=torch.float64)) == 0
    assert error(torch.tensor([math.inf]), torch.tensor([1e30], dtype=torch.float64)) == math.inf
    assert error(torch.ones(2), torch.ones(3).double()) == math.inf


def test_the_grid_holds_what_the_readme_promises():
    all_cases = list(cases(quick=False))
    for norm, kind in NORMS.items():
        own = [case for case in all_cases if case.norm == norm]
        assert {case.mean for case in own if case.dtype == "fp32"} == {0.0, 1e4, 1e6}
        assert {case.hard for case in own} == {"", "huge", "constant", "nan", "inf", "empty"}
        assert any(case.mask for case in own) == kind.masks
        assert any(case.layout == "channels_last" for case in own) != kind.rows
        if kind.rows:
            assert {768, 4096} < {case.shape[-1] for case in own}
    assert EXACT == 1e-5


def test_ctrl_c_keeps_what_was_checked_and_is_no_success(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from normkit.cli.verify import verify as command
    from normkit.verify import running

    own, done = running.check_case, []

    def stopped(case, device):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(case)
        return own(case, device)

    monkeypatch.setattr(running, "check_case", stopped)
    path = tmp_path / "found.json"
    result = CliRunner().invoke(command, ["--device", "cpu", "--quick", "--json", str(path)])
    assert result.exit_code == 130
    assert "0 failed; stopped by Ctrl-C" in result.output
    found = json.loads(path.read_text())
    assert found["left"] > 0
    assert found["passed"] == len(found["rows"]) > 0
