"""A Ray cluster: one that runs somewhere, or one that is started on this machine for the sweep alone."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from time import monotonic
from typing import Any

from normkit.errors import user_error
from normkit.lab.limit import too_long
from normkit.lab.machine import configure_worker
from normkit.lab.measuring import Outcome
from normkit.lab.worker import Job, Report, execute_apart, failed, stopped

__all__ = ["RayEngine"]

RETRIES = 2  # after the first attempt, of a run whose worker dies: Ray does it
TICK = 0.2  # seconds
ANSWER = 15  # seconds that a cluster has to answer


class RayEngine:
    """Runs as Ray tasks, one CPU and one torch thread each.

    Args:
        workers: how many at a time on a cluster that is started here; all cores by default.
        address: of a cluster: "auto", "host:port", or "ray://host:port". None starts one here, loopback only.
    """

    def __init__(
        self,
        workers: int | None = None,
        address: str | None = None,
        limit: float | None = None,
        device: str = "cpu",
        objects: bytes = b"",
    ) -> None:
        if importlib.util.find_spec("ray") is None:
            raise user_error("The engine ray needs Ray.", fix="pip install 'normkit[ray]'")
        if workers is not None and (type(workers) is not int or workers < 1):
            raise user_error(f"workers= got {workers!r}.", expected="an integer of at least 1")
        if device not in ("cpu", "cuda"):
            raise user_error(
                f"--device {device} with --engine ray.",
                expected="cpu, or cuda: Ray says which one",
                fix="--engine local" if device == "mps" else "--device cuda",
            )
        _environment()
        self.address, self.workers = _check_address(address), workers or os.cpu_count() or 1
        self.limit, self.device, self.objects = limit, device, objects
        self._ray: Any = None

    def __call__(self, jobs: Sequence[Job], report: Report) -> Generator[tuple[Job, Outcome], None, None]:
        if self._ray is None:
            self._ray = self._connect()
        finished = False
        try:
            yield from _run(self, self._ray, jobs, report)
            finished = True
        finally:
            if not finished:
                self.close()

    def close(self) -> None:
        """Leave the cluster; one that was started for the sweep ends."""
        if self._ray is not None:
            self._ray.shutdown()
            self._ray = None

    def _connect(self) -> Any:
        import ray

        paths = [p for p in sys.path if p] if self.address is None else [os.getcwd()]
        options: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}},
        }
        if self.address is None:
            options |= {"address": "local", "num_cpus": self.workers}
            options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        else:
            options |= {"address": self.address}
        before = signal.getsignal(signal.SIGTERM)
        ray.init(**options)
        if threading.current_thread() is threading.main_thread():  # Ray has put its own in its place
            signal.signal(signal.SIGTERM, before)
        kind = "CPU" if self.device == "cpu" else "GPU"
        there = int(ray.cluster_resources().get(kind, 0))
        if kind == "GPU" and not there:
            ray.shutdown()
            raise user_error(
                f"--device {self.device}: the Ray cluster has no GPU.",
                expected="a cluster whose nodes have some, for  ray status  to list",
                fix="--device cpu",
            )
        if self.address is not None or kind == "GPU":
            self.workers = max(1, there)
        return ray


def _environment() -> None:
    """Loopback only for a cluster that is started here, nothing told to Ray's makers, and no word of what it
    will do one day."""
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def _check_address(address: str | None) -> str | None:
    """The address of a cluster that answers. Ray itself would try for minutes, so a process of its own tries
    first, and is stopped when its time is over."""
    if address is None:
        return None
    found = address
    if address == "auto":
        found = os.environ.get("RAY_ADDRESS") or _running() or ""
        if not found:
            raise user_error(
                "--address auto: no Ray cluster runs on this machine.",
                expected="one that was started with  ray start --head",
                fix="start one, or leave --address out: it is then started for the sweep.",
            )
    host, _, port = found.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise user_error(f"--address got {address!r}.", expected="auto, host:port, or ray://host:port")
    code = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); ray.shutdown()"
    try:
        tried = subprocess.run([sys.executable, "-c", code, found], capture_output=True, timeout=ANSWER)
        reason = None if tried.returncode == 0 else _last(tried.stderr)
    except subprocess.TimeoutExpired as error:
        reason = f"nothing within {ANSWER} seconds; {_last(error.stderr)}"
    if reason is not None:
        raise user_error(
            f"--address {address} does not answer: {reason}.",
            expected="the address of a Ray cluster",
            fix="start one with  ray start --head, or leave --address out.",
        )
    return found


def _last(said: bytes | None) -> str:
    """The last line of what Ray has said, which has the reason."""
    lines = (said or b"").decode(errors="replace").strip().splitlines()
    return lines[-1].rstrip(".") if lines else "it gives no reason"


def _running() -> str | None:
    """The cluster that  ray start  has left running here, if any."""
    from ray._private import services

    with contextlib.suppress(Exception):
        found = services.find_gcs_addresses()
        return sorted(found)[0] if found else None
    return None


def _run(
    engine: RayEngine, ray: Any, jobs: Sequence[Job], report: Report
) -> Generator[tuple[Job, Outcome], None, None]:
    board = ray.remote(num_cpus=0)(_Board).remote()
    limit = engine.limit

    def work(job: Job, board: Any, objects: bytes) -> Outcome:
        configure_worker()
        board.begin.remote(job.key)
        return execute_apart(job, lambda *news: board.tell.remote(*news), objects)

    # A task that asks for a GPU sees no other: Ray sets CUDA_VISIBLE_DEVICES.
    needs = {"num_cpus": 1} if engine.device == "cpu" else {"num_cpus": 1, "num_gpus": 1}
    task = ray.remote(**needs, max_retries=RETRIES)(work)
    objects = ray.put(engine.objects)
    waiting = {task.remote(job, board, objects): job for job in jobs}
    news: Any = None
    begun: dict[str, float] = {}
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=TICK)
        for reference in done:
            job = waiting.pop(reference)
            try:
                outcome = ray.get(reference)
            except ray.exceptions.RayError as error:
                outcome = failed(f"Its worker died {RETRIES + 1} times: {error}")
            yield job, outcome
        if news is None:
            news = board.take.remote()
        elif ray.wait([news], timeout=0)[0]:
            latest, started = ray.get(news)
            for item in latest:
                report(*item)
            begun |= dict.fromkeys(started, monotonic())
            news = None
        for reference, job in list(waiting.items()):
            if limit is not None and monotonic() - begun.get(job.key, math.inf) > limit:
                del waiting[reference]
                ray.cancel(reference, force=True)  # its process ends, and Ray does not try again
                yield job, stopped(too_long(limit))


class _Board:
    """An actor on which workers leave the latest of each run, and which of them they have begun."""

    def __init__(self) -> None:
        self.latest: dict[str, tuple[int, float]] = {}
        self.begun: list[str] = []

    def begin(self, key: str) -> None:
        self.begun.append(key)

    def tell(self, key: str, step: int, loss: float) -> None:
        self.latest[key] = (step, loss)

    def take(self) -> tuple[list[tuple[str, int, float]], list[str]]:
        latest, self.latest = self.latest, {}
        begun, self.begun = self.begun, []
        return [(key, *news) for key, news in latest.items()], begun
