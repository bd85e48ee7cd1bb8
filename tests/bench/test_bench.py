"""``normkit bench`` and what it measures with. No test asserts a speed."""

import io
import json
import signal
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from test_cli import run

import normkit as nk
from normkit import kernels
from normkit.bench import cells, devices, figure, grid, measuring, peers, rows, stopwatch, timer
from normkit.bench.cells import Cell, Row
from normkit.bench.table import tables

BUDGET = timer.Budget(0.001, fewest=3, most=3)


@pytest.fixture
def small(monkeypatch):
    """Two row norms and an image, tiny."""
    kept = [cell for cell in grid.cells_of("cpu", quick=True) if cell.family == "channels"][:1]
    kept = [
        Cell("rows", op, way, (8, 64), threads=1, compiled=False)
        for op in rows.NORMS
        for way in grid.PASSES
        if way != "copy_"
    ] + kept
    monkeypatch.setattr(measuring, "cells_of", lambda device, quick: kept)
    monkeypatch.setattr(measuring, "SMOKE", BUDGET)
    return kept


def test_a_smoke_run_on_the_cpu_writes_the_file_and_the_figure(capsys, tmp_path, small):
    pytest.importorskip("matplotlib", reason="it draws the figure")
    results, picture = tmp_path / "bench.json", tmp_path / "bench.svg"
    arguments = ("--device", "cpu", "--quick", "--json", str(results), "--figure", str(picture))
    code, out, _ = run(capsys, "bench", *arguments)
    found = json.loads(results.read_text())
    assert code == 0
    assert max(map(len, out.splitlines()[:-2])) <= 80, "but for paths"
    assert found["run"] == "whole"
    assert {"device", "torch", "triton", "normkit", "cpu", "date"} <= set(found["machine"])
    assert set(found["skipped"]) >= {"liger", "quack", "torch.compile"}
    ways = {(row["op"], row["way"]) for row in found["rows"]}
    assert {(op, way) for op in rows.NORMS for way in ("forward", "forward out=", "backward", "add")} < ways
    for row in found["rows"]:
        assert set(row["us"]) >= {"ours", "copy_", "eager"}
        assert row["backend"]
        assert set(row["median"]) == set(row["spread"]) == set(row["us"])
    assert "<svg" in picture.read_text()
    assert "without liger: its kernels are for GPUs" in out


def test_ctrl_c_keeps_what_was_measured(capsys, tmp_path, small, monkeypatch):
    right, path = measuring.run, tmp_path / "bench.json"

    def interrupted(cell, *rest):
        if cell == small[2]:
            signal.raise_signal(signal.SIGINT)
        return right(cell, *rest)

    monkeypatch.setattr(measuring, "run", interrupted)
    code, out, err = run(capsys, "bench", "--device", "cpu", "--quick", "--json", str(path))
    found = json.loads(path.read_text())
    assert code == 130
    assert found["run"] == f"interrupted after 2 of {len(small)} cells"
    assert {row["way"] for row in found["rows"]} == {"forward", "forward out=", "backward"}
    assert found["run"] in out
    assert err == "normkit: interrupted\n"


def test_a_device_that_is_not_here_is_named_with_those_that_are(capsys):
    code, out, err = run(capsys, "bench", "--device", "cuda:77")
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == "--device got 'cuda:77', which is not on this machine."
    assert err.splitlines()[1].startswith("  expected: one of ")
    assert devices.find("cpu") == torch.device("cpu")
    assert str(devices.find(None)) == devices.available()[0]


def test_gpus_are_found_and_described(monkeypatch):
    """With a stand-in: there is none here."""
    properties = SimpleNamespace(name="A GPU")
    module = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, get_device_properties=lambda device: properties
    )
    monkeypatch.setattr(devices, "KINDS", ("cuda",))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(kernels, "gpus", lambda: {"cuda:0": None, "cuda:1": "Triton is missing"})
    assert devices.available() == ["cuda:0", "cuda:1", "cpu"]
    assert str(devices.find(None)) == str(devices.find("cuda")) == "cuda:0"
    assert str(devices.find("cuda:1")) == "cuda:1"
    with pytest.raises(nk.NormkitError, match="expected: one of cuda:0, cuda:1, cpu"):
        devices.find("cuda:2")
    found = devices.describe(torch.device("cuda:1"))
    assert (found["name"], found["kernels"]) == ("A GPU", "none: Triton is missing")
    assert found["driver"]
    assert devices.describe(torch.device("cuda:0"))["kernels"] == "triton"


def test_without_matplotlib_a_figure_is_refused_before_the_work(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(figure, "undrawable", lambda: "pip install matplotlib: No module named 'matplotlib'")
    code, _, err = run(capsys, "bench", "--figure", str(tmp_path / "a.svg"))
    assert (code, err) == (
        2,
        "--figure needs matplotlib.\n  fix: pip install matplotlib: No module named 'matplotlib'\n",
    )


def test_a_peer_that_fails_or_computes_something_else_takes_no_part():
    x = torch.ones(2, 4)

    def fail():
        raise ValueError("two\nlines")

    candidates = {"copy_": fail, "eager": lambda: x, "ours": lambda: x, "liger": fail, "quack": lambda: x + 1}
    found = cells.unfit(Cell("rows", "RMSNorm", "forward", (2, 4)), candidates)
    assert found == {
        "liger": "ValueError: two lines",
        "quack": "it computes something else: off by 1.0e+00",
    }


def test_a_wrong_candidate_of_ours_is_named_and_not_measured(small, monkeypatch):
    monkeypatch.setattr(measuring, "unfit", lambda cell, candidates: {"ours": "it computes something else"})
    found = measuring.measure_grid(torch.device("cpu"), quick=True)
    assert found.rows == []
    assert "ours, RMSNorm add 8x64 fp32" in found.skipped


def test_a_cell_that_fails_is_named_and_the_others_are_kept(small, monkeypatch):
    right = measuring.run

    def out_of_memory(cell, *rest):
        if cell == small[0]:
            raise torch.OutOfMemoryError("too little")
        return right(cell, *rest)

    monkeypatch.setattr(measuring, "run", out_of_memory)
    found = measuring.measure_grid(torch.device("cpu"), quick=True)
    assert found.skipped["LayerNorm forward 8x64 fp32"] == "OutOfMemoryError: too little"
    assert found.label == "whole"
    assert len(found.rows) > len(small) - 1


def test_liger_and_quack_are_called_as_they_are_written(monkeypatch):
    """With stand-ins: neither runs without a GPU."""
    called = []
    liger = SimpleNamespace(
        liger_rms_norm=lambda x, w, eps, in_place: called.append(("rms", in_place)),
        liger_layer_norm=lambda x, w, b, eps: called.append(("layer", eps)),
        liger_fused_add_rms_norm=lambda x, r, w, eps, in_place: called.append(("add", in_place)),
    )
    quack = SimpleNamespace(rmsnorm=lambda x, w, **options: called.append(("quack", *sorted(options))))
    monkeypatch.setattr(peers, "_import", lambda peer: {"liger": liger, "quack": quack}[peer])
    x, w = torch.ones(2, 4), torch.ones(4)

    def norms(op, way):
        return peers.row_peers(Cell("rows", op, way, (2, 4), device="cuda"), 1e-5)

    for norm in norms("RMSNorm", "forward").values():
        norm(x, w)
    for norm in norms("RMSNorm", "add").values():
        norm(x, x, w)
    norms("LayerNorm", "backward")["liger"](x, w, w)
    assert "quack" not in norms("LayerNorm", "backward")
    assert called == [
        *(("rms", False), ("quack", "eps"), ("add", False), ("quack", "eps", "prenorm", "residual")),
        ("layer", 1e-5),
    ]
    assert peers.missing("liger", "cpu") == "its kernels are for GPUs"


def test_a_peer_that_is_not_installed_says_how_to_get_it():
    for peer, (_, package) in peers.HOMES.items():
        reason = peers.missing(peer, "cuda:0")
        assert reason is None or package in reason or "Error" in reason


def test_a_devices_own_events_time_a_call_and_the_cache_is_flushed_before_each():
    log = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("event")

        def elapsed_time(self, end):
            return 3.0  # milliseconds

    module = SimpleNamespace(Event=Event, synchronize=lambda: log.append("wait"))
    flushed = SimpleNamespace(zero_=lambda: log.append("flush"))
    seconds = stopwatch.device_turn(module, flushed, lambda: log.append("call"), 2)
    assert seconds == pytest.approx(3e-3)
    assert log == ["flush", "event", "call", "event"] * 2 + ["wait"]


def test_every_candidate_takes_a_turn_in_every_round():
    log = []
    candidates = {name: (lambda name=name: log.append(name)) for name in "ab"}
    found = timer.measure(candidates, BUDGET, turn=lambda call, repeats: (call(), 1e-3)[1])
    assert all((t.rounds, t.low, t.median, t.spread) == (3, 1e-3, 1e-3, 0) for t in found.values())
    assert sorted(log[-6:]) == list("aaabbb")


def test_a_gpu_row_with_every_peer_fits_80_columns():
    names = ("ours", "copy_", "eager", "compile", "liger", "quack")
    us = dict.fromkeys(names, 12.345)
    made = [
        Row("rows", op, way, shape, "bf16", 2, layout, 5, None, us, us, None, "cuda:0", us, "reference")
        for op, shape, layout in (
            ("LayerNorm", (131072, 256), "contiguous"),
            ("BatchNorm train", (512, 64, 32, 32), "channels_last"),
        )
        for way in ("forward", "forward out=")
    ]
    text = io.StringIO()
    for table in tables(made):
        Console(file=text, width=80).print(table)
    assert "…" not in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 80
    assert {"copy", "ours", "torch", "compile", "Liger", "quack", "by"} <= set(text.getvalue().split())


def test_gigabytes_are_what_a_call_cannot_do_without():
    row = Row(
        "rows",
        "RMSNorm",
        "backward",
        (1000, 1000),
        "bf16",
        1,
        "contiguous",
        3,
        None,
        {},
        {},
        median={"ours": 6.0},
    )
    assert grid.gigabytes(row, "ours") == pytest.approx(6e-3)
    assert grid.gigabytes(row, "copy_") == pytest.approx(4e-3)
    assert grid.rate(row, "ours") == pytest.approx(1000)
    assert grid.rate(row, "liger") is None


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("quick", [True, False])
def test_the_grid_has_every_way_of_every_norm(device, quick):
    found = grid.cells_of(device, quick)
    assert {cell.device for cell in found} == {device}
    for op in rows.NORMS:
        assert {cell.way for cell in found if cell.op == op} == {"forward", "backward", "add"}
    assert {cell.op for cell in found if cell.family == "channels"} == set(grid.CHANNEL_OPS)
    assert {cell.compiled for cell in found} == (
        {False} if quick else {True} if device != "cpu" else {True, False}
    )
