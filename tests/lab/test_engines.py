"""The same numbers everywhere, and no run lost with its worker."""

import contextlib
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile

import pytest
import torch
from lab.folders import environment

from normkit.errors import NormkitError
from normkit.lab.engines import engine
from normkit.lab.engines.local import _Slot
from normkit.lab.run import Run
from normkit.lab.worker import Job, execute

OWN = "lab.own_task:Small"


def jobs(task=OWN, count=3, **options):
    runs = [
        Run(
            task=task,
            options=tuple(sorted(options.items())),
            depth=2,
            width=16,
            batch_size=8,
            steps=20,
            seed=seed,
        )
        for seed in range(count)
    ]
    data = runs[0].build_task().fingerprint
    return [Job(run.key(data), run, data, run.code) for run in runs]


def losses(work, chosen):
    """Held-out losses by run, each once."""
    news = []
    with contextlib.closing(chosen):
        done = list(chosen(work, lambda *n: news.append(n)))
    assert sorted(job.key for job, _ in done) == sorted(job.key for job in work), "every run once"
    assert all(outcome.error is None for _, outcome in done), [o.error for _, o in done]
    assert {key for key, _, _ in news} <= {job.key for job in work}
    return {job.key: (outcome.validation, outcome.judged) for job, outcome in done}


@pytest.fixture(scope="module")
def wanted():
    found = {job.key: execute(job) for job in jobs()}
    return {key: (outcome.validation, outcome.judged) for key, outcome in found.items()}


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_local_processes_give_the_same_numbers_bit_for_bit(workers, wanted):
    assert losses(jobs(), engine("local", workers=workers)) == wanted


def test_a_killed_worker_is_replaced_and_its_run_done_again(tmp_path):
    mark = tmp_path / "killed"
    done = dict(losses(jobs("lab.own_task:KilledOnce", mark=str(mark)), engine("local", workers=2)))
    assert int(mark.read_text()) != os.getpid()
    assert len(done) == 3


def test_a_run_that_always_kills_its_worker_is_given_up(tmp_path):
    work = jobs("lab.own_task:Deadly", count=1, parent=os.getpid())
    ((_, outcome),) = engine("local", workers=1)(work, lambda *_: None)
    assert outcome.status == "failed"
    assert "died 3 times" in outcome.error


def test_a_bug_in_a_task_is_the_outcome_of_its_run_and_not_the_end_of_the_sweep():
    ((_, outcome),) = engine("local", workers=0)(jobs("lab.own_task:Broken", count=1), lambda *_: None)
    assert outcome.status == "failed"
    assert "no_such_method" in outcome.error


TROUBLE = "lab.own_task:Trouble"


def outcomes(work, chosen):
    with contextlib.closing(chosen):
        return {job.run.seed: outcome for job, outcome in chosen(work, lambda *_: None)}


@pytest.mark.parametrize(
    ("what", "said"), [("exit", "sys.exit(3)"), ("exit with a word", "sys.exit('enough')")]
)
@pytest.mark.parametrize("workers", [0, 1])
def test_sys_exit_in_a_task_is_the_outcome_of_its_run_and_the_others_go_on(workers, what, said):
    found = outcomes(jobs(TROUBLE, what=what), engine("local", workers=workers))
    assert [found[seed].status == "failed" for seed in range(3)] == [False, True, False]
    assert said in found[1].error


def test_an_interrupt_is_the_tasks_own_in_a_worker_and_the_users_in_this_process():
    work = jobs(TROUBLE, what="interrupt")
    found = outcomes(work, engine("local", workers=1))
    assert [found[seed].status == "failed" for seed in range(3)] == [False, True, False]
    assert "KeyboardInterrupt" in found[1].error
    with pytest.raises(KeyboardInterrupt):
        outcomes(work, engine("local", workers=0))


@pytest.mark.parametrize(("workers", "what"), [(0, "hang"), (1, "hang"), (1, "hang for good")])
def test_a_run_beyond_its_limit_is_stopped_and_marked_and_the_others_go_on(workers, what):
    start = time.monotonic()
    found = outcomes(jobs(TROUBLE, what=what), engine("local", workers=workers, limit=5))
    assert [found[seed].status == "stopped" for seed in range(3)] == [False, True, False]
    assert "longer than its limit of 5 seconds" in found[1].error
    assert time.monotonic() - start < 40


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_while_a_run_is_handed_over_leaves_no_worker_behind(monkeypatch, number):
    """Another thread takes the signal, as threads that do not block it may."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    ended, put = threading.Event(), queue.Queue.put
    threading.Thread(target=ended.wait, daemon=True).start()
    handed = []

    def put_and_interrupt(self, item, *more):
        if threading.current_thread() is threading.main_thread() and not handed:
            handed.append(item)
            os.kill(os.getpid(), number)
            time.sleep(0.2)
        put(self, item, *more)

    monkeypatch.setattr(queue.Queue, "put", put_and_interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(engine("local", workers=1)(jobs(), lambda *_: None))
    finally:
        signal.signal(number, before)
        ended.set()
    assert handed
    assert multiprocessing.active_children() == []


def test_a_worker_is_not_charged_for_loading_torch():
    slot = _Slot(b"")
    try:
        future = slot.submit(jobs(count=1)[0])
        assert slot.busy_for() == 0.0
        future.result(timeout=60)
        assert slot.busy_for() == 0.0, "as long as it has not been heard of"
        slot.tell(lambda *_: None)
        time.sleep(0.05)
        assert 0.05 <= slot.busy_for() < 20
    finally:
        slot.stop()


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), "3", True])
@pytest.mark.parametrize("name", ["local", "ray"])
def test_a_limit_is_a_number_of_seconds(name, limit):
    with pytest.raises(NormkitError, match="limit= got"):
        engine(name, limit=limit)


def test_a_worker_with_other_data_or_code_does_not_pretend():
    (job,) = jobs(count=1)
    assert "The data of the task" in execute(Job(job.key, job.run, "other", job.code)).error
    assert "This worker has" in execute(Job(job.key, job.run, job.data, "other")).error


def test_a_worker_that_dies_while_it_is_idle_is_replaced():
    work = jobs(count=2)
    slots = []
    chosen = engine("local", workers=1)
    running = chosen(work, lambda *_: None)
    next(running)
    for process in multiprocessing.active_children():
        process.kill()
        process.join()
        slots.append(process)
    time.sleep(0.5)
    assert slots
    assert [job.key for job, _ in running] == [work[1].key]


def test_a_script_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import normkit as nk\n"
        f"nk.lab.compare('{OWN}', steps=5, seeds=1, workers=1, out='{tmp_path / 'runs'}', progress=False)\n"
    )
    result = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=60,
    )
    assert 'if __name__ == "__main__":' in result.stderr.splitlines()[-2]
    assert result.stderr.count("Traceback") == 1, "the workers are silent"


def test_a_program_in_a_zip_file_starts_workers(tmp_path):
    """As pip's commands on Windows are."""
    call = f"nk.lab.compare('{OWN}', steps=5, seeds=1, workers=1, out='{tmp_path / 'runs'}', progress=False)"
    program = f"import normkit as nk\n\nif __name__ == '__main__':\n    print({call}.state)\n"
    with zipfile.ZipFile(tmp_path / "program.pyz", "w") as file:
        file.writestr("__main__.py", program)
    result = subprocess.run(
        [sys.executable, str(tmp_path / "program.pyz")],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr


def test_a_script_on_standard_input_is_told_before_anything_starts(tmp_path):
    result = subprocess.run(
        [sys.executable, "-"],
        input=f"import normkit as nk\nnk.lab.compare('{OWN}', steps=5, out='{tmp_path / 'runs'}')\n",
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=60,
    )
    assert "Workers cannot start from" in result.stderr
    assert "workers=0" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_the_process_of_a_notebook_is_left_as_it_was():
    torch.set_num_threads(2)
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    list(engine("local", workers=0)(jobs(count=1), lambda *_: None))
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.rand(3), wanted)


def test_workers_stay_for_the_next_round_until_the_engine_is_closed():
    chosen = engine("local", workers=1)
    with contextlib.closing(chosen):
        pids = []
        for _ in range(2):
            list(chosen(jobs(count=1), lambda *_: None))
            pids.append({process.pid for process in multiprocessing.active_children()})
        assert pids[0] == pids[1] != set()
    assert not {process.pid for process in multiprocessing.active_children()} & pids[0]


def test_closing_stops_the_workers_at_once():
    work = jobs(count=200)
    running = engine("local", workers=1)(work, lambda *_: None)
    next(running)
    start = time.monotonic()
    running.close()
    assert time.monotonic() - start < 5


@pytest.fixture(scope="module")
def on_ray():
    """Ray warns of what pytest takes for errors; it is told not to."""
    pytest.importorskip("ray", reason="pip install 'normkit[ray]'")
    return engine("ray", workers=2)


@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_same_numbers_bit_for_bit(on_ray, wanted):
    assert losses(jobs(), on_ray) == wanted


@pytest.mark.filterwarnings("ignore")
def test_ray_does_a_run_again_whose_worker_was_killed(on_ray, tmp_path, wanted):
    mark = tmp_path / "killed"
    done = losses(jobs("lab.own_task:KilledOnce", mark=str(mark)), on_ray)
    assert int(mark.read_text()) != os.getpid(), "a worker was killed"
    assert sorted(map(str, done.values())) == sorted(map(str, wanted.values()))


@pytest.mark.filterwarnings("ignore")
def test_ray_marks_what_exits_and_what_hangs_and_goes_on():
    pytest.importorskip("ray", reason="pip install 'normkit[ray]'")
    work = [*jobs(TROUBLE, what="exit"), *jobs(TROUBLE, what="hang for good")]
    chosen = engine("ray", workers=2, limit=20)  # a busy machine takes some seconds to start
    with contextlib.closing(chosen):
        found = {(job.run.value("what"), job.run.seed): o for job, o in chosen(work, lambda *_: None)}
    assert [found["exit", seed].status == "failed" for seed in range(3)] == [False, True, False]
    assert "sys.exit(3)" in found["exit", 1].error
    hanging = [found["hang for good", seed].status == "stopped" for seed in range(3)]
    assert hanging == [False, True, False]
    assert "longer than its limit of 20 seconds" in found["hang for good", 1].error


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("auto", "no Ray cluster runs"),
        ("nowhere", "auto, host:port"),
        ("127.0.0.1:{port}", "does not answer"),
    ],
)
def test_an_address_that_does_not_answer_is_named_within_seconds(address, text, monkeypatch):
    pytest.importorskip("ray", reason="pip install 'normkit[ray]'")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("normkit.lab.engines.on_ray._running", lambda: None)
    monkeypatch.setattr("normkit.lab.engines.on_ray.ANSWER", 8)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(NormkitError) as error:
        engine("ray", address=address.format(port=port))
    assert text in str(error.value)
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "rya"}, "did you mean 'ray'?"),
        ({"workers": -1}, "workers= got -1"),
        ({"name": "ray", "workers": 0}, "workers= got 0"),
        ({"address": "auto"}, "add --engine ray"),
    ],
)
def test_a_mistake_is_named(options, text):
    with pytest.raises(NormkitError) as error:
        engine(**options)
    assert text in str(error.value)
