"""``study``: do what a study needs, on the engines and in the store of a comparison, and judge."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from normkit.errors import NormkitError, user_error
from normkit.lab import commits, machine
from normkit.lab.console import plain_console
from normkit.lab.design import Cell, Study, all_studies, find_study, row_id, source_files
from normkit.lab.engines import engine as engine_named
from normkit.lab.extras import needs
from normkit.lab.jobs import perform
from normkit.lab.measuring import Outcome
from normkit.lab.run import Run, code_version
from normkit.lab.store import Store
from normkit.lab.study_result import MOST_SEEDS, StudyResult, committed, frozen, joined
from normkit.lab.worker import Job

__all__ = ["StudyResult", "committed", "stored_studies", "study", "verify"]

FOLDER = "runs/studies"
OFTEN = 60.0  # seconds between two copies of the rows


def study(
    *names: str,
    seeds: int | None = None,
    quick: bool = False,
    out: str | os.PathLike[str] = FOLDER,
    save: str | os.PathLike[str] | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> StudyResult | list[StudyResult]:
    """Run one study, or several, and judge.

    Args:
        names: as ``normkit study`` lists them.
        seeds: how many; as many as each study asks for by default. With fewer there is no verdict.
        quick: the smallest form, to see that it works; no verdict either.
        save: a folder for the rows, as JSON. Rows that it has already are not measured again, and those of a
            complete study are never overwritten.
        out, engine, address, workers, progress: as in :func:`compare`.

    Returns:
        the result, or a list of them for several names.
    """
    chosen = [find_study(name) for name in names]
    if not chosen:
        raise user_error("study() got no name.", expected=f"one of {', '.join(all_studies())}")
    if seeds is not None and (type(seeds) is not int or not 1 <= seeds <= MOST_SEEDS):
        raise user_error(f"seeds got {seeds!r}.", expected=f"an integer from 1 to {MOST_SEEDS}")
    if quick and save is not None:
        raise user_error("save came with quick.", expected="a full run; a smoke run says nothing")
    for name in ("scipy", "pandas", "plotly"):
        needs(name)
    for s in chosen:
        if s.needs is not None and not quick:
            s.needs()
    saved = {s.name: _saved(s, Path(save)) for s in chosen} if save is not None else {}
    rows = _Saved(Path(save), saved) if save is not None else None
    where = engine_named(engine, workers=workers, address=address)
    console = plain_console(soft_wrap=True, quiet=not progress)
    whole, jobs = {}, {}
    for s in chosen:
        kept = saved.get(s.name)
        known = {row["id"] for row in kept.rows} if kept else set()
        whole[s.name] = _jobs(s.work(1 if quick and seeds is None else seeds, quick=quick))
        jobs[s.name] = [job for job in whole[s.name] if row_id(job.run) not in known]
    every = list(dict.fromkeys(job.key for some in jobs.values() for job in some))
    new = {s.name: _about(s, jobs[s.name], quick) for s in chosen}
    with Store(Path(out), write=True) as store, contextlib.closing(where):
        earlier = _described(store)
        for s in chosen:
            _check_rules(s, earlier.get(s.name), Path(out))
        begun = _begun(store, () if quick else chosen)
        store.begin({"studies": earlier, "rules": begun}, every)

        def results(*, partial: bool) -> list[StudyResult]:
            done = {key: (run, outcome) for key, run, outcome in store.runs(every)}
            return [
                _result(
                    s,
                    [done[job.key] for job in jobs[s.name] if job.key in done],
                    new[s.name],
                    saved.get(s.name),
                    partial=partial,
                )
                for s in chosen
            ]

        last = time.monotonic()

        def keep() -> None:
            nonlocal last
            if rows is not None and time.monotonic() - last > OFTEN:
                rows.put(results(partial=True))
                last = time.monotonic()

        try:
            perform(store, where, [job for some in jobs.values() for job in some], console, note=keep)
        except BaseException:
            last = -math.inf
            keep()
            raise
        found = results(partial=False)
        # What an earlier sitting has measured in this folder and saved belongs to it, too.
        here = store.done(job.key for some in whole.values() for job in some)
        told = {
            name: {**about, "keys": [j.key for j in whole[name] if j.key in here]}
            for name, about in new.items()
        }
        store.amend({"studies": _joined(earlier, told, quick), "rules": begun}, every)
    if rows is not None:
        rows.put(found)
    return found if len(names) > 1 else found[0]


def _saved(study: Study, folder: Path) -> StudyResult | None:
    """The rows that a folder has of a study; whoever runs it again must not have changed its rules."""
    home = Path(needs(study.module).__file__).parent
    for file in source_files(study.module):
        if commits.changed(home / file):
            raise user_error(
                f"{file} has changes that are in no commit.",
                expected="rules that are frozen in a commit before the run",
                fix="git commit it, and start again.",
            )
    path = folder / f"{study.name}.json"
    if not path.exists():
        return None
    found = StudyResult.load(path)
    if found.is_complete:
        raise user_error(
            f"{path} is complete, and results do not change.",
            expected="a study that has no result there, or not all its seeds",
            fix="another folder with --save.",
        )
    return found


class _Saved:
    """A folder for the rows, and what it had when we last looked: what others wrote since is kept."""

    def __init__(self, folder: Path, saved: Mapping[str, StudyResult | None]) -> None:
        self.folder = folder
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
        self.seen = {name: _content(folder / f"{name}.json") for name in saved}

    def put(self, results: Iterable[StudyResult]) -> None:
        for result in results:
            path = self.folder / f"{result.name}.json"
            if _content(path) != self.seen[result.name]:
                raise user_error(
                    f"{path} was written by another run in the meantime.",
                    expected="one run of a study and a folder at a time",
                    fix="the same command again, which keeps the rows of both.",
                )
            with self._writing():
                result.save(self.folder)
            self.seen[result.name] = _content(path)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise user_error(
                f"{self.folder} cannot be written: {error.strerror}.",
                expected="a folder that can be, on a disk with room",
                fix="mend that, and the same command again: all that was measured is in the folder of --out.",
            ) from error


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _begun(store: Store, chosen: Iterable[Study]) -> dict[str, str]:
    """The hashes of the rules, by study, that a folder has rows of, those of interrupted runs, too."""
    found = store.newest()
    told = found[0].get("rules") if found else None
    begun = {str(name): str(hashed) for name, hashed in told.items()} if isinstance(told, dict) else {}
    for study in chosen:
        _check_rules(study, {"quick": False, "hash": begun.get(study.name, study.rules_hash)}, store.folder)
    return begun | {study.name: study.rules_hash for study in chosen}


def _check_rules(study: Study, about: Mapping[str, Any] | None, folder: Path) -> None:
    """Rows of a folder are judged by the rules that they were run under."""
    if about and not about["quick"] and about["hash"] != study.rules_hash:
        raise user_error(
            f"{folder} has rows of {study.name} that were run under other rules, {about['hash']}.",
            expected=f"its rules as they are now, {study.rules_hash}",
            fix="another folder with --out.",
        )


def _about(study: Study, jobs: Sequence[Job], quick: bool) -> dict[str, Any]:
    home = Path(needs(study.module).__file__)
    rules = commits.last_change(home)
    sitting = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "commit": commits.head(home.parent) if rules else None,  # else the repository is of something else
        "rules_commit": rules,
        "code": code_version(),
        "machine": machine.describe(),
    }
    runs = [(job.run, job.data) for job in jobs if isinstance(job.run, Run)]
    data = {f"{run.task} {dict(run.options) or ''}".strip(): fingerprint for run, fingerprint in runs}
    return {"quick": quick, **frozen(study), "data": data, "sittings": [sitting]}


def stored_studies(folder: str | os.PathLike[str]) -> dict[str, StudyResult]:
    """The latest result of every study in a folder; smoke runs only where there is nothing else."""
    with Store(Path(folder)) as store:
        described = _described(store)
        found: dict[str, StudyResult] = {}
        for name in (name for name in all_studies() if name in described):
            about = dict(described[name])
            keys = about.pop("keys")
            if not about["quick"]:
                _check_rules(find_study(name), about, Path(folder))
            rows, unread = store.read(keys)
            try:
                if len(rows) < len(keys):
                    why = next(iter(unread.values()), "they are not there")
                    raise NormkitError(f"{len(keys) - len(rows)} of {len(keys)} cannot be read, {why}")
                found[name] = _result(find_study(name), [(run, outcome) for _, run, outcome in rows], about)
                assert found[name].rulings  # they are computed now, and not on the page
            except Exception as error:  # rows that a rule cannot use: each rule fails in its own way
                raise user_error(
                    f"{folder}: the rows of the study {name} cannot be used: {str(error).rstrip('.')}.",
                    expected="a folder as normkit study has written it",
                    fix=f"normkit study {name} --out {folder}, which does only what is missing.",
                ) from error
    if not found:
        raise user_error(
            f"{folder}: it is about studies, and none of them has ended.",
            fix=f"normkit study NAME --out {folder}, which does only what is missing.",
        )
    return found


def _described(store: Store) -> dict[str, dict[str, Any]]:
    """What the folder says of its studies, by name; nothing of what is not as we write it."""
    try:
        told = store.latest()[0].get("studies")
    except NormkitError:  # no sweep yet, or one that cannot be read
        return {}
    return {
        str(name): about
        for name, about in (told if isinstance(told, dict) else {}).items()
        if _is_about(about)
    }


def _is_about(about: Any) -> bool:
    if not isinstance(about, dict) or set(about) != {"quick", "rules", "hash", "data", "sittings", "keys"}:
        return False
    keys, sittings = about["keys"], about["sittings"]
    return (
        isinstance(about["quick"], bool)
        and isinstance(about["rules"], list)
        and isinstance(about["data"], dict)
        and isinstance(keys, list)
        and all(isinstance(text, str) for text in (*keys, about["hash"]))
        and isinstance(sittings, list)
        and all(
            isinstance(s, dict) and isinstance(s.get("machine"), dict) and {"date", "code"} <= set(s)
            for s in sittings
        )
    )


def _joined(earlier: Mapping[str, Any], new: Mapping[str, Any], quick: bool) -> dict[str, Any]:
    """With what was there before. A smoke run, which says nothing, is not put beside full ones."""
    full = {name: about for name, about in earlier.items() if not about["quick"]}
    if quick:
        return full or {**earlier, **new}
    return {**full, **new}


def _jobs(work: Iterable[Run | Cell]) -> list[Job]:
    fingerprints: dict[tuple[Any, ...], str] = {}
    jobs = []
    for item in work:
        data = ""
        if isinstance(item, Run):
            which = (item.task, item.options)
            if which not in fingerprints:
                fingerprints[which] = item.build_task().fingerprint
            data = fingerprints[which]
        jobs.append(Job(item.key(data), item, data, item.code))
    return jobs


def _result(
    study: Study,
    done: Sequence[tuple[Run | Cell, Outcome]],
    about: Mapping[str, Any],
    kept: StudyResult | None = None,
    *,
    partial: bool = False,
) -> StudyResult:
    """With the rows of earlier sittings, in the order of the study's work."""
    failed = [outcome.error for _, outcome in done if outcome.error is not None]
    if failed and not partial:
        raise user_error(f"{study.name}: {len(failed)} of {len(done)} cells failed.\n{failed[0]}")
    good = [(work, outcome) for work, outcome in done if outcome.error is None]
    (sitting,) = about["sittings"]
    sittings = [{**sitting, "rows": len(good)}] if good else []
    seconds = sum(outcome.seconds for _, outcome in good)
    rows, data = study.rows(good), dict(about["data"])
    if kept is not None:
        sittings = joined([*kept.about["sittings"], *sittings])
        seconds += kept.about["seconds"]
        rows = sorted([*kept.rows, *rows], key=lambda row: row["seed"])
        data = _same_data(study, kept.about["data"], data)
    found = StudyResult(study, rows, {**about, "data": data, "sittings": sittings})
    found.about.update(seeds=found.seeds, seconds=round(seconds, 1))
    return found


def _same_data(study: Study, before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    for task, fingerprint in now.items():
        if before.get(task, fingerprint) != fingerprint:
            raise user_error(
                f"{study.name}: the data of the task {task} are others now than in earlier sittings.",
                expected=f"data with the fingerprint {before[task][:16]}",
            )
    return {**before, **now}


def verify(results: Iterable[StudyResult]) -> list[str]:
    """Where these results and the committed ones disagree: one line each."""
    known = committed()
    found = []
    for result in results:
        old = known.get(result.name)
        for name, ruling in result.rulings.items():
            before = old.rulings[name].verdict if old and name in old.rulings else "nothing"
            if ruling.verdict != before:
                now = f"{ruling.verdict} now, {ruling.said}"
                found.append(f"{result.name}, {name}: {now}; {before} in the results")
    return found
