"""The machine's clock is set while Kant runs, a day on, a day back, ten years on: no limit, wait or order cares."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

from kant.live.journals import NAME, Journals, name_at, time_of

HOUR, DAY, YEAR = 3600, 86400, 365 * 86400
LIMIT = 4.0
LONG = 600 * 10**6  # microseconds: longer than anything here lasts, shorter than any leap


class Wall:
    """The machine's clock as Kants that are started with `prepare` read it: so many seconds beside the true one."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "clock"
        self.set(0)

    def set(self, seconds: int) -> None:
        """From now on it stands there."""
        new = self.file.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self.file)

    def prepare(self) -> None:
        """In the process of a Kant: the clock is read through the file."""
        real, gmtime, localtime = time.time_ns, time.gmtime, time.localtime

        def now() -> int:
            return real() + int(self.file.read_text()) * 10**9

        time.time_ns = now
        time.time = lambda: now() / 1e9
        time.gmtime = lambda seconds=None: gmtime(now() / 1e9 if seconds is None else seconds)
        time.localtime = lambda seconds=None: localtime(now() / 1e9 if seconds is None else seconds)


def sane(kant: Up) -> list[dict[str, Any]]:
    """The jobs by their numbers: what came later was submitted later, and nothing lasted longer than this test."""
    jobs = sorted(kant.client.get("/v1/jobs", limit=1000)["jobs"], key=lambda job: job["seq"])
    now = kant.client.get("/v1/health")["now_us"]
    assert all(one["submitted"] <= other["submitted"] for one, other in pairwise(jobs))
    for job in jobs:
        times = [job["submitted"], job["started"], job["ended"], now]
        known = [each for each in times if each >= 0]
        assert known == sorted(known) and known[-1] - known[0] < LONG, job
    return jobs


def test_a_clock_that_is_set_stops_nobody_and_holds_nobody_up(tmp_path: Path) -> None:
    wall, home = Wall(tmp_path), tmp_path / "home"
    leaps = (DAY, -DAY, 10 * YEAR, -HOUR, 0)
    with Up(home, "1x4", prepare=wall.prepare, keep_days=1) as kant:
        limited = kant.submit("echo here; sleep 60", gpus=1, time_s=LIMIT, warn_s=1.0)
        long = kant.submit("while [ ! -e go ]; do sleep 0.05; done", gpus=2, time_s=HOUR)
        waits = kant.submit("true", gpus=3)
        assert eventually(lambda: [kant.phase(job) for job in (limited, long)] == ["running"] * 2)
        assert verb("reserve", "exam", "--gpus", "1", "--start", "30m", "--time", "1h", "--home", home).code == 0
        exam = kant.client.get("/v1/reservations")
        assert [row["phase"] for row in exam["reservations"]] == ["pending"]
        steps = []
        for leap in leaps:
            wall.set(leap)
            steps.append(kant.submit(f"echo {leap}", gpus=0))
            assert kant.over(steps[-1]) == ["finished"]
            assert kant.phase(long) == "running" and kant.phase(waits) == "waiting"
            told = kant.client.get("/v1/eta")
            assert [row["job"] for row in told["jobs"]] == [waits] and told["time_us"] + told["zero_us"] < 2**62
            assert "capacity" in kant.client.get(kant.client.job(waits, "why"))["sentence"]
            assert kant.client.get("/v1/reservations") == exam
            listed = verb("jobs", "--home", home, "--all")
            assert listed.code == 0 and "waiting" in listed.out and not re.search(r"\d[dh]\b", listed.out), listed
            sane(kant)
        wall.set(-HOUR)
        kant.kill()
    with Up(home, "1x4", prepare=wall.prepare, keep_days=1) as kant:  # the clock stands an hour behind
        assert kant.phase(long) == "running" and kant.phase(waits) == "waiting"
        assert kant.over(limited) == ["failed"]
        job = kant.job(limited)["job"]
        assert job["reason"] == "it reached its time limit of 4s" and job["attempt"] == 1
        assert LIMIT * 10**6 <= job["ended"] - job["started"] < LONG
        second = kant.submit("echo later")
        assert kant.over(second) == ["finished"]
        wall.set(10 * YEAR)
        again = kant.submit("sleep 60", time_s=0.5, warn_s=0.2)  # limits that begin and end on either side of a leap
        assert eventually(lambda: kant.phase(again) == "running" or kant.job(again)["job"]["ended"] >= 0)
        wall.set(-DAY)
        assert kant.over(again) == ["failed"]
    wall.set(10 * YEAR)
    with Up(home, "1x4", prepare=wall.prepare, keep_days=1) as kant:  # ten years ahead: nothing is old by that
        assert kant.phase(long) == "running" and kant.client.get("/v1/reservations") == exam
        (home / "go").touch()
        assert kant.over(long, waits) == ["finished"] * 2
        assert [job["id"] for job in sane(kant)] == [limited, long, waits, *steps, second, again]
        deeds = [deed["time"] for deed in reversed(kant.client.get("/v1/audit")["deeds"])]
        assert deeds == sorted(deeds)
    paths = sorted((home / "journal").iterdir())
    assert len(paths) == 3 and all(NAME.fullmatch(path.name) for path in paths)
    for path in paths:
        told = verb("replay", path, "--json")
        assert told.code == 0 and told.json()["equal"] and told.json()["run"]["jobs"], told


def test_names_of_journals_follow_their_order_whatever_the_clock_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals, names = Journals(tmp_path), []
    (tmp_path / "mine.jsonl").touch()
    for seconds in (10**9, 10**9, 10**9 - DAY, 10**9 + 10 * YEAR, 10**9, -5, 10**9 + 11 * YEAR):
        monkeypatch.setattr(time, "time_ns", lambda seconds=seconds: seconds * 10**9)
        journals.open()
        assert journals.path is not None
        names.append(journals.path.name)
    journals.close()
    assert names == sorted(set(names)) and names[-1] == name_at((10**9 + 11 * YEAR) * 10**6)
    assert [name_at(time_of(name)) for name in names] == names
