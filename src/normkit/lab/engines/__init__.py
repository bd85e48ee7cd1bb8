"""Where runs are done: in this process, in processes on this machine, or on a Ray cluster.

An engine is a generator: it takes jobs, tells of their progress, and gives each outcome as soon as it is
there. Closing it stops what is going on. All three give the same numbers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from normkit import checks
from normkit.lab.limit import check_limit
from normkit.lab.measuring import Outcome
from normkit.lab.worker import Job, Report

__all__ = ["ENGINES", "Engine", "engine"]

ENGINES = ("local", "ray")


class Engine(Protocol):
    """``workers`` is how many runs go on at a time, ``limit`` how many seconds each may take. Workers stay
    for the next call until ``close``."""

    workers: int
    limit: float | None

    def __call__(self, jobs: Sequence[Job], report: Report) -> Generator[tuple[Job, Outcome], None, None]: ...

    def close(self) -> None: ...


def engine(
    name: str = "local",
    *,
    workers: int | None = None,
    address: str | None = None,
    limit: float | None = None,
    device: str = "cpu",
    objects: bytes = b"",
) -> Engine:
    """An engine by name; nothing is started until it is called.

    Args:
        device: that of the runs; there is one run a device.
        objects: what workers must have, see ``own.pack``.
    """
    checks.one_of(name, ENGINES, what="engine=")
    check_limit(limit)
    if name == "ray":
        from normkit.lab.engines.on_ray import RayEngine

        return RayEngine(workers, address, limit, device, objects)
    from normkit.lab.engines.local import LocalEngine

    return LocalEngine(workers, address, limit, device, objects)
