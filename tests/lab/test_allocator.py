"""Our own processes keep their memory; a process that merely imports normkit is left alone."""

import os
import subprocess
import sys

import pytest
from lab.folders import environment

from normkit.lab import allocator

# Page faults of a fresh output of 64 MB, when the heap has settled. Of torch: ours asks for large pages.
FAULTS = """
import resource, torch, normkit as nk
x = torch.randn(4096, 4096)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.layer_norm(x, (4096,))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(min(faults() for _ in range(16)))
"""
COMMAND = """
import sys
from normkit.cli import main
sys.argv = ["normkit", "--version"]
try:
    main()
except SystemExit:
    pass
"""
WORKER = """
from normkit.lab.machine import configure_worker
configure_worker(threads=None)
"""


def faults(first, **variables):
    """In a process that begins with ``first``."""
    clean = {
        name: value for name, value in environment().items() if not name.startswith(("MALLOC_", "GLIBC_T"))
    }
    clean.pop(allocator.SWITCH, None)
    result = subprocess.run(
        [sys.executable, "-c", first + FAULTS],
        env={**clean, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(result.stdout.split()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_a_command_and_a_worker_map_no_page_twice_and_an_import_changes_nothing():
    imported = faults("")
    if imported < 1000:
        pytest.skip("large pages hide it here")
    assert faults(COMMAND) < imported / 10
    assert faults(WORKER) < imported / 10
    assert faults(COMMAND, **{allocator.SWITCH: "0"}) > imported / 2


@pytest.mark.parametrize(
    "wish",
    [{"NORMKIT_KEEP_MEMORY": "0"}, {"MALLOC_ARENA_MAX": "2"}, {"GLIBC_TUNABLES": "glibc.malloc.check=1"}],
)
def test_the_users_own_wishes_come_first(wish, monkeypatch):
    asked = []
    for name in [n for n in os.environ if n.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(allocator.sys, "platform", "linux")
    libc = type("Libc", (), {"mallopt": lambda self, *a: asked.append(a) or 1, "gnu_get_libc_version": 1})()
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: libc)
    assert allocator.keep_memory() is True
    assert asked == [(-4, 0), (-1, -1), (-2, 64 << 20)]
    asked.clear()
    for name, value in wish.items():
        monkeypatch.setenv(name, value)
    assert allocator.keep_memory() is False
    assert asked == []


@pytest.mark.parametrize("libc", [{}, {"mallopt": 1}], ids=["nothing", "another library's"])
def test_other_systems_are_left_alone(libc, monkeypatch):
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: type("Libc", (), libc)())
    assert allocator.keep_memory() is False
    monkeypatch.setattr(allocator.sys, "platform", "darwin")
    assert allocator.keep_memory() is False
