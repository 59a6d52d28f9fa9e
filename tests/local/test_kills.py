"""Kant is killed with -9 at random moments, and at the worst ones. No job runs twice, none is lost, no GPU clashes.

`KANT_KILLS=500` kills it so often (tests: 12).
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.local.up import Up, asked, eventually

from kant.local import launch
from kant.local.record import JobPhase
from kant.model.errors import InputError
from kant.model.status import JobStatus
from kant.service.client import ServiceClient
from kant.service.store import JobStore

KILLS = int(os.environ.get("KANT_KILLS", "12"))

SCRIPT = """
echo "begin $KANT_JOB_ID" >> trail
[ "$(cat alive.$KANT_JOB_ID 2>/dev/null)" = "" ] || echo "twice $KANT_JOB_ID" >> trail
echo $$ > alive.$KANT_JOB_ID
for place in $(echo "$KANT_DEVICES" | tr ';' ' '); do
  for gpu in $(echo "${place#*:}" | tr ',' ' '); do
    mkdir "gpu.${place%%:*}.$gpu" 2>/dev/null || echo "clash $KANT_JOB_ID $place $gpu" >> trail
  done
done
sleep $1
for place in $(echo "$KANT_DEVICES" | tr ';' ' '); do
  for gpu in $(echo "${place#*:}" | tr ',' ' '); do rmdir "gpu.${place%%:*}.$gpu"; done
done
echo "end $KANT_JOB_ID" >> trail
: > alive.$KANT_JOB_ID
exit $2
"""


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def at_the_worst(rng: random.Random) -> Callable[[], None]:
    """Die between the intent and the start, right after it, or before or after a transaction.

    Right after a start the supervisor is slow to begin, so that the next Kant may come before it."""
    point, count, slow = rng.choice(("intent", "begun", "write", "written")), rng.randint(1, 3), rng.uniform(0.1, 0.6)

    def prepare() -> None:
        left = [count]
        if point == "begun":
            late = Path(f"late.{os.getpid()}").absolute()
            late.write_text(f'#!/bin/sh\nsleep {slow:.2f}\nexec {sys.executable} "$@"\n')
            late.chmod(0o700)
            sys.executable = str(late)

        def last() -> bool:
            left[0] -= 1
            return left[0] == 0

        begin, write = launch.begin, JobStore.write

        def beginning(*given: Any) -> Any:
            if point == "intent" and last():
                die()
            run = begin(*given)
            if point == "begun" and last():
                die()
            return run

        def writing(*given: Any) -> None:
            if point == "write" and last():
                die()
            write(*given)
            if point == "written" and last():
                die()

        launch.begin = beginning
        JobStore.write = writing  # type: ignore[method-assign]

    return prepare


def submit(client: ServiceClient, home: Path, number: int, rng: random.Random) -> str | None:
    """The id of a new job; None where nobody answered, so that nobody knows."""
    code, gpus = number % 3, rng.choice((1, 1, 2, 4, 8))
    job = asked(home, SCRIPT, gpus=gpus, name=f"job{number}")
    job["command"] += ["sh", f"{rng.uniform(0.05, 0.4):.2f}", str(code)]
    try:
        return str(client.post("/v1/jobs", job)["jobs"][0])
    except InputError:
        return None


def look_back(kant: Up, known: set[str]) -> None:
    """The past of all these starts: each job is there at most once, has ended, and no GPU was two jobs' at a time."""
    assert eventually(lambda: kant.client.get("/v1/record")["cursor"].split(".")[1] != "0"), "the past is read"
    record = kant.client.get("/v1/record")
    ids, held = record["jobs"]["id"], record["intervals"]
    assert len(ids) == len(set(ids)) and set(ids) <= known and ids
    assert set(record["jobs"]["status"]) == {JobStatus.FINISHED, JobStatus.REJECTED}
    assert min(held["end"]) >= 0
    of: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    for job, node, mask, start, end in zip(
        *(held[key] for key in ("job", "node", "mask_low", "start", "end")), strict=True
    ):
        for gpu in range(8):
            if mask >> gpu & 1:
                of.setdefault((node, gpu), []).append((start, end, ids[job]))
    for spans in of.values():
        clashes = [each for each in pairwise(sorted(spans)) if each[0][1] > each[1][0]]
        assert clashes == []


@pytest.mark.parametrize("seed", [1])
def test_no_job_runs_twice_and_none_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.chdir(tmp_path)
    rng, told = random.Random(seed), dict[str, int]()
    home, number, kills = tmp_path / "home", 0, 0
    while kills < KILLS or len(told) <= KILLS // 2:  # enough is asked for, however slow the machine is
        worst = rng.random() < 0.5
        kant = Up(home, prepare=at_the_worst(rng)) if worst else Up(home)
        end = time.monotonic() + (2.0 if worst else rng.uniform(0.02, 0.6))
        while time.monotonic() < end and not kant.is_dead():
            if len(told) < number + 8 and rng.random() < 0.3:
                number += 1
                job = submit(kant.client, home, number, rng)
                if job is not None:
                    told[job] = number
            time.sleep(0.02)
        kant.kill()
        kills += 1
    with Up(home) as kant:
        live = "held,blocked,waiting,running,stopping"
        assert eventually(lambda: not kant.client.get("/v1/jobs", state=live)["jobs"], 60 + KILLS / 2)
        known, before = list[dict[str, Any]](), None
        while before != 0:
            page = kant.client.get("/v1/jobs", limit=1000, before=before)
            known, before = known + page["jobs"], page["next"] or 0
        assert told.keys() <= {job["id"] for job in known}
        look_back(kant, {job["id"] for job in known})
    trail = Counter((home / "trail").read_text().splitlines())
    assert not [line for line in trail if line.startswith(("twice", "clash"))], trail
    store = JobStore(home / "kant.db")
    names = Counter(job["name"] for job in known)
    assert set(names.values()) == {1}
    for job in known:
        record = store.record(job["id"])
        assert record is not None
        code = int(job["name"].removeprefix("job")) % 3
        assert trail[f"begin {job['id']}"] == trail[f"end {job['id']}"] == 1, (job, record)
        assert (record.code, record.phase) == (code, JobPhase.FAILED if code else JobPhase.FINISHED), record
    store.close()
