"""Slots: a front end starts short jobs in them while Kant is not asked, and a slot gets one job or is taken back."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.local.up import Up, asked, eventually

from kant.local import supervisor
from kant.local.runs import Spec
from kant.local.slots import OF_JOB, OF_PLACE, give, given_to, slot_for, withdraw
from kant.model.submission import Submission, Terminal
from kant.service.client import FRONT_SOCKET
from kant.service.socket_http import exchange
from kant.service.store import digest_of

JOB = Submission(command=("true",), workdir="/", env={"A": "1"}, gpus=1.0, time_s=100.0)
BROUGHT = {"command": ("false", "x"), "env": {"B": "2"}, "workdir": "/tmp", "name": "n", "time_s": 9.0, "grace_s": 0.0}
PLACE = {"gpus": 0.5, "cpus": 2.0, "memory_mib": 5, "queue": "q", "priority": 3, "preemptible": False, "account": "a"}
MORE: dict[str, Any] = {
    "array": (1,), "retries": 1, "singleton": True, "begin": 5.0, "after": ("1",), "slurm": True, "output": "o",
    "error": "e", "exclusive": True, "nodes": 1, "hold": True, "terminal": Terminal(), "reservation": "r",
}  # fmt: skip


@given(st.sets(st.sampled_from(sorted(BROUGHT))), st.sets(st.sampled_from(sorted(PLACE))))
def test_a_slot_is_the_place_of_a_job_and_nothing_of_what_it_brings(brought: set[str], place: set[str]) -> None:
    job = msgspec.structs.replace(
        JOB, **{name: BROUGHT[name] for name in brought}, **{name: PLACE[name] for name in place}
    )
    slot, plain = slot_for(job), slot_for(JOB)
    assert slot is not None and (slot == plain) is not bool(place)
    assert all(getattr(slot, name) == getattr(job, name) for name in OF_PLACE)
    assert slot.command == ("",) and slot.env == {}
    assert {*OF_JOB} >= {*BROUGHT} and {*OF_PLACE} >= {*PLACE}


@pytest.mark.parametrize("name", sorted(MORE))
def test_what_asks_for_more_than_a_place_has_no_slot(name: str) -> None:
    assert slot_for(msgspec.structs.replace(JOB, **{name: MORE[name]})) is None


def test_a_slot_gets_one_job_or_is_taken_back(tmp_path: Path) -> None:
    own = {"KANT_JOB_NAME": "(slot)", "KANT_GPUS": "1", "OMP_NUM_THREADS": "4"}
    spec = Spec(("",), own, "/", 0o22, 1000, 1.0, 600.0, 0.0, cores=(3,), cgroup="c")
    firsts = []
    for turn in range(20):
        folder = tmp_path / str(turn)
        folder.mkdir()
        (folder / "spec.json").write_bytes(msgspec.json.encode(spec))
        jobs = [
            msgspec.structs.replace(JOB, name=f"n{at}", env={"KANT_GPUS": "9", "OMP_NUM_THREADS": "1"}) for at in (0, 1)
        ]
        with ThreadPoolExecutor(3) as pool:
            said = [pool.submit(give, folder, job, digest_of(job.name.encode())) for job in jobs]
            pool.submit(withdraw, folder).result()
            took = [each.result() for each in said]
        found = given_to(folder)
        assert sum(took) == (found is not None)
        firsts.append(found is None)
        if found is not None:
            assert found.job == jobs[took.index(True)] and found.digest == digest_of(found.job.name.encode())
            assert found.spec.env == {"KANT_JOB_NAME": found.job.name, "KANT_GPUS": "1", "OMP_NUM_THREADS": "1"}
            assert (found.spec.limit_s, found.spec.command) == (100.0, ("true",))
            assert (found.spec.cores, found.spec.cgroup, found.spec.log_bytes) == ((3,), "c", 1000)
        withdraw(folder)
        assert given_to(folder) == found  # what has been decided stays
    assert not (tmp_path / "none").exists() and not give(tmp_path / "none", JOB, b"")


def stopped() -> int:
    """The end of a pipe from which a supervisor reads that it got SIGTERM."""
    ours, theirs = os.pipe()
    os.write(theirs, bytes([signal.SIGTERM]))
    os.close(theirs)
    return ours


def test_a_slot_that_is_stopped_takes_no_job_any_more(tmp_path: Path) -> None:
    begun = time.monotonic()
    assert supervisor.awaited(str(tmp_path), stopped(), 20.0) is None
    assert time.monotonic() < begun + 10, "it does not wait for its end"
    assert given_to(tmp_path) is None and (tmp_path / "given").exists()


def test_a_job_that_is_given_in_the_instant_of_the_stop_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spec.json").write_bytes(msgspec.json.encode(Spec(("",), {}, "/", 0o22, 1000, 1.0, 600.0, 0.0)))
    sent: list[tuple[int, int]] = []

    def late(folder: str, content: str, name: str) -> bool:
        monkeypatch.undo()
        monkeypatch.setattr(os, "kill", lambda *words: sent.append(words))
        assert give(tmp_path, JOB, digest_of(b""))
        return False

    monkeypatch.setattr(supervisor, "claim", late)
    spec = supervisor.awaited(str(tmp_path), stopped(), 20.0)
    assert spec is not None and spec["command"] == ["true"]
    assert sent == [(os.getpid(), signal.SIGTERM)]


class Fronts:
    """Submits to the front end of a Kant, and knows which slots there are."""

    def __init__(self, kant: Up, **wish: Any) -> None:
        self.kant, self.wish = kant, {"gpus": 1.0, "time_s": 20.0} | wish

    def send(self, script: str, **wish: Any) -> str:
        """The id of a job."""
        text = json.dumps(asked(self.kant.home, script, **self.wish | wish)).encode()
        kind = {"Content-Type": "application/json"}
        reply = exchange(str(self.kant.home / FRONT_SOCKET), "POST", "/v1/jobs", text, kind)
        said = json.loads(reply.read())
        assert reply.status == 201, said
        return str(said["jobs"][0])

    def slots(self) -> list[Path]:
        """The folders of the slots that have begun and have no job."""
        found = []
        for spec in self.kant.home.glob("runs/*/1/spec.json"):
            folder = spec.parent
            waits = (folder / "claim").exists() and not (folder / "given").exists()
            if waits and json.loads(spec.read_bytes())["command"] == [""]:
                found.append(folder)
        return found

    def known(self) -> bool:
        """Whether there is a slot of which the front end knows: it takes one, and no batch is handed over."""
        before = len(self.slots())
        self.send("true")
        return eventually(lambda: self.slots() != []) and before > 0


def eventually_told(kant: Up, fronts: Fronts, send: Callable[[], str]) -> str:
    """The answer to a job while Kant is stopped, which it then is. It goes on where the front end had no slot yet."""
    with ThreadPoolExecutor(1) as pool:
        for _ in range(20):
            assert eventually(fronts.known)
            time.sleep(0.2)  # until the front end is told
            os.kill(kant.pid, signal.SIGSTOP)
            said = pool.submit(send)
            if not wait([said], 2).not_done:
                return said.result()
            os.kill(kant.pid, signal.SIGCONT)
            said.result()
    raise AssertionError("no job has started while Kant was stopped")


def test_short_jobs_start_while_kant_does_not_answer_and_are_there_after_it_was_killed(tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    with Up(home, front_ends=1) as kant:
        fronts = Fronts(kant)
        script = f'echo "$MINE $KANT_JOB_NAME $KANT_JOB_ID $CUDA_VISIBLE_DEVICES" > {out}'
        wish = {"name": "one", "env": {"PATH": os.environ["PATH"], "MINE": "x"}}
        told = eventually_told(kant, fronts, lambda: fronts.send(script, **wish))
        assert eventually(lambda: out.exists() and out.read_text().endswith("\n")), "nobody is asked"
        mine, name, job, device = out.read_text().split()
        assert (mine, name, job) == ("x", "one", told) and device in "0123"
        os.kill(kant.pid, signal.SIGKILL)
        kant.kill()
    with Up(home, front_ends=1) as kant:
        assert kant.over(told) == ["finished"]
        row = kant.job(told)["job"]
        assert row["name"] == "one" and row["submitted"] <= row["started"] <= row["ended"]
        rows = lambda: kant.client.get("/v1/jobs", limit=1000)["jobs"]  # noqa: E731
        assert eventually(lambda: not [row for row in rows() if row["name"] == "(slot)"]), "nothing is left of slots"


def test_slots_are_given_back_to_whoever_waits_and_where_nothing_may_start(tmp_path: Path) -> None:
    with Up(tmp_path / "home", "1x4", front_ends=1) as kant:
        fronts = Fronts(kant)
        assert eventually(fronts.known)
        limited = fronts.send("sleep 60", time_s=0.3)
        assert kant.over(kant.submit("true", gpus=4)) == ["finished"]
        assert kant.over(limited) == ["failed"]
        assert "time limit of 0.3s" in kant.job(limited)["job"]["reason"]
        assert eventually(fronts.known)
        stopped = fronts.send("sleep 60")
        kant.client.post(kant.client.job(stopped, "cancel"))
        assert kant.over(stopped) == ["cancelled"]
        assert eventually(fronts.known)
        kant.client.post("/v1/queues/pause", {"queues": []})
        waits = fronts.send("true")
        assert kant.phase(waits) == "waiting" and eventually(lambda: not fronts.slots())
        kant.client.post("/v1/queues/resume", {"queues": []})
        assert kant.over(waits) == ["finished"]
    assert verb("replay", min((tmp_path / "home" / "journal").glob("*.jsonl"))).out.startswith("equal")
