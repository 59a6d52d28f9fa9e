"""The verbs of every day: waiting with an exit code, arrays in parts, order among jobs, cancelling many, accounting."""

from __future__ import annotations

import csv
import io
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

from kant.cli import history
from kant.cli.amounts import moment, most_at_once, parse_array
from kant.cli.wait import code_of
from kant.model.errors import InputError
from kant.service.store import JobStore
from kant.service.usage import usage_of


@pytest.fixture(autouse=True)
def home(kant: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KANT_HOME", str(kant.home))
    monkeypatch.chdir(kant.home)


def test_wait_ends_with_the_exit_code_of_the_job(kant: Up) -> None:
    codes = {"true": 0, "exit 7": 7, "kill -TERM $$": 143}
    for script, code in codes.items():
        job = kant.submit(f"sleep 0.1; {script}")
        assert verb("wait", job).code == code
        assert verb("wait", job).code == code, "also of one that is over"
        outcome = verb("submit", "--wait", "--", "sh", "-c", script)
        assert outcome.code == code and outcome.out.strip().isdigit()
    held = kant.submit("true", hold=True)
    kant.client.post(kant.client.job(held, "cancel"))
    found = verb("wait", held, job, "--json")
    assert found.code == 1 and [each["phase"] for each in found.json()["jobs"]] == ["cancelled", "failed"]
    array = verb("submit", "--array", "0-2", "--", "sh", "-c", "exit $KANT_ARRAY_INDEX").out.strip()
    found = verb("wait", array)
    assert found.code == 1 and found.out.splitlines()[0] == f"{array}_0: finished" and len(found.out.splitlines()) == 3
    assert "the id of a job" in verb("wait", "999").refusal() and "JOBS" in verb("wait").refusal()


def test_a_script_says_what_it_asks_for(kant: Up) -> None:
    path = kant.home / "train.sh"
    path.write_text("#!/bin/sh\n#SBATCH --job-name=train --gres=gpu:2\n#KANT --time 1m\necho $1 $KANT_GPUS; exit 3\n")
    outcome = verb("submit", "--wait", path, "here")
    job = outcome.out.strip()
    assert outcome.code == 3 and kant.log(job) == "here 2\n"
    found = kant.job(job)
    assert (found["job"]["name"], found["job"]["gpus"], found["time_s"]) == ("train", 2, 60)


@given(st.lists(st.sampled_from([0, 3, 130, None]), max_size=5))
def test_of_several_jobs_the_first_code_that_is_not_0_counts(codes: list[int | None]) -> None:
    ended = [
        {"phase": "finished" if code == 0 else "cancelled" if code is None else "failed", "code": code, "signal": None}
        for code in codes
    ]
    assert code_of(ended) == next((1 if code is None else code for code in codes if code != 0), 0)


@given(low=st.integers(0, 30), more=st.integers(0, 30), step=st.integers(1, 40), most=st.integers(1, 9))
def test_an_array_has_steps_and_a_most(low: int, more: int, step: int, most: int) -> None:
    text = f"{low}-{low + more}:{step}"
    assert parse_array(text) == list(range(low, low + more + 1, step))
    assert most_at_once(f"{text}%{most}") == most and most_at_once(text) == 0


@pytest.mark.parametrize("text", ["0-9:0", "0-9:", ":2", "9-0:1", "0-9:2:3"])
def test_what_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--array"):
        parse_array(text)


@pytest.mark.parametrize("text", ["0-9%0", "0-9%", "0-9%x", "0-9%-1"])
def test_what_is_no_most_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--array"):
        most_at_once(text)


def test_of_an_array_no_more_run_at_once_than_it_says(kant: Up) -> None:
    script = (
        "mkdir run.$KANT_ARRAY_INDEX; ls | grep -c '^run[.]'; while ! test -e go; do sleep 0.02; done; "
        "rmdir run.$KANT_ARRAY_INDEX"
    )
    array = verb("submit", "--cpus", "0", "--array", "0-8:1%2", "--", "sh", "-c", script).out.strip()
    jobs = [f"{array}_{i}" for i in range(9)]
    assert eventually(lambda: [kant.phase(job) for job in jobs[:2]] == ["running"] * 2)
    assert [kant.phase(job) for job in jobs[2:]] == ["blocked"] * 7
    why = kant.client.get(kant.client.job(jobs[2], "why"))["sentence"]
    assert why == "its array has reached its limit of 2 jobs at once"
    verb("hold", jobs[2])
    verb("cancel", jobs[3])
    verb("cancel", jobs[0])
    assert eventually(lambda: kant.phase(jobs[4]) == "running"), "those that are held or cancelled make no room"
    (kant.home / "go").touch()
    kant.over(jobs[1], *jobs[4:])
    verb("release", jobs[2])
    kant.over(jobs[2])
    assert [kant.phase(job) for job in jobs] == ["cancelled", *["finished"] * 2, "cancelled", *["finished"] * 5]
    counts = [kant.log(job).split() for job in (jobs[1], jobs[2], *jobs[4:])]
    assert all(count in (["1"], ["2"], ["3"]) for count in counts), "3 where the one that was cancelled left its mark"


def test_an_array_with_a_most_outlives_kant(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Up(home) as kant:
        first = kant.submit("while ! test -e go; do sleep 0.02; done", cpus=0, array=list(range(5)), array_most=2)
        jobs = [f"{first.partition('_')[0]}_{i}" for i in range(5)]
        assert eventually(lambda: [kant.phase(job) for job in jobs[:2]] == ["running"] * 2)
        kant.kill()
    with Up(home) as kant:
        assert [kant.phase(job) for job in jobs] == ["running"] * 2 + ["blocked"] * 3
        (home / "go").touch()
        assert kant.over(*jobs) == ["finished"] * 5


def test_jobs_come_after_others_however_these_end(kant: Up) -> None:
    for script, phases in (
        ("exit 1", ["finished", "cancelled", "finished"]),
        ("exit 0", ["finished", "finished", "cancelled"]),
    ):
        first = kant.submit(f"sleep 0.2; {script}")
        later = [
            verb("submit", option, first, "--", "true").out.strip()
            for option in ("--after-any", "--after-ok", "--after-not-ok")
        ]
        assert kant.over(*later) == phases
    assert "it depends on the failure of job" in kant.job(later[2])["job"]["reason"]


def test_a_job_begins_at_its_time(kant: Up) -> None:
    job = verb("submit", "--begin", "1h", "--name", "late", "--", "true").out.strip()
    assert kant.phase(job) == "blocked"
    assert kant.client.get(kant.client.job(job, "why"))["sentence"].startswith("it may not start before 20")
    verb("cancel", job)
    soon = verb("submit", "--begin", "0.5s", "--", "true").out.strip()
    assert verb("wait", soon).code == 0
    found = kant.job(soon)["job"]
    assert found["started"] - found["submitted"] >= 300_000


@given(st.datetimes(datetime(2001, 1, 1), datetime(2100, 1, 1)), st.integers(0, 23), st.integers(0, 59))
def test_a_time_of_day_is_the_next(now: datetime, hour: int, minute: int) -> None:
    found = datetime.fromtimestamp(moment(f"{hour}:{minute:02}", now))
    assert (found.hour, found.minute) == (hour, minute) and now < found <= now + timedelta(days=1, hours=2)


@pytest.mark.parametrize("text", ["25:00", "soon", "2030-13-01", "", "12:60"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--begin"):
        moment(text, datetime(2030, 1, 1))


def test_many_jobs_are_cancelled_by_what_they_are(kant: Up) -> None:
    one = [kant.submit("true", hold=True, name=name) for name in ("train-a", "train-b", "other")]
    array = kant.submit("true", hold=True, name="train-c", array=[0, 1]).partition("_")[0]
    done = verb("cancel", "--name", "train-*", "--json").json()["jobs"]
    assert sorted(done) == sorted([*one[:2], f"{array}_0", f"{array}_1"])
    assert verb("cancel", "--user", "nobody", "--json").json()["jobs"] == []
    running = kant.submit("sleep 60", gpus=1, grace_s=0.1)
    assert eventually(lambda: kant.phase(running) == "running")
    assert verb("cancel", "--state", "running", "--json").json()["jobs"] == [running]
    assert kant.phase(one[2]) == "held"
    assert one[2] in verb("cancel", "--all", "--json").json()["jobs"]
    kant.over(running)
    assert "either ids, or options" in verb("cancel", "1", "--all").refusal()
    assert "--state: expected some of" in verb("cancel", "--state", "sad").refusal()
    assert "the ids of jobs" in verb("cancel").refusal()


def test_rows_of_single_jobs_say_how_each_ended(capsys: pytest.CaptureFixture[str]) -> None:
    job = {"queue": "q", "user": "ann", "gpus": 2.0, "submitted": 0, "started": 5, "attempt": 1}
    failed = {"id": "9", "phase": "failed", "ended": 20, "signal": 9, "rss_kib": 2048}
    rows = usage_of([job | failed, job | {"id": "10", "phase": "finished", "ended": 30}], ["job"], 0, 100, {})
    assert [(row["job"], row["phase"], row["signal"], row["rss_kib"]) for row in rows] == [
        ("9", "failed", 9, 2048), ("10", "finished", None, None),
    ]  # fmt: skip
    history._show(["job"], rows)
    assert {"signal 9", "2.0"} <= set(re.findall(r"signal 9|2\.0", capsys.readouterr().out))


def test_history_adds_up_what_jobs_used(tmp_path: Path) -> None:
    with Up(tmp_path / "home") as kant:
        jobs = [kant.submit(f"sleep 0.1; exit {i % 2}", gpus=i) for i in (1, 2, 3, 4)]
        kant.over(*jobs)
        at = ("--home", kant.home)
        rows = {job: kant.job(job)["job"] for job in jobs}
        gpu_s = sum(row["gpus"] * (row["ended"] - row["started"]) for row in rows.values()) / 1e6
        (whole,) = verb("history", "--by", "", "--json", *at).json()["rows"]
        assert (whole["jobs"], whole["finished"], whole["failed"], whole["runs"]) == (4, 2, 2, 4)
        assert whole["gpu_s"] == pytest.approx(gpu_s)
        for by in ("user", "queue", "day", "job", "user,day"):
            found = verb("history", "--by", by, "--json", *at).json()["rows"]
            assert sum(row["jobs"] for row in found) == 4 and sum(row["gpu_s"] for row in found) == pytest.approx(gpu_s)
        ends = [rows[job]["ended"] for job in jobs]
        found = verb("history", "--by", "job", "--json", *at).json()["rows"]
        assert [row["ended"] for row in found] == sorted(ends)
        for row in found:
            one = rows[row["job"]]
            ways = ("user", "queue", "name", "phase", "reason", "submitted", "started", "code")
            assert {way: row.get(way) for way in ways} == {way: one[way] for way in ways}
            assert row["rss_kib"] == kant.job(row["job"])["attempts"][-1]["rss_kib"] > 0
            kept = JobStore(kant.home / "kant.db").record(row["job"])
            assert kept is not None and kept.rss_kib == row["rss_kib"]
        text = verb("history", "--by", "job", "--csv", *at).out
        table = list(csv.DictReader(io.StringIO(text)))
        assert sorted(row["job"] for row in table) == sorted(jobs) and {row["jobs"] for row in table} == {"1"}
        assert sorted((row["phase"], row["code"]) for row in table) == [("failed", "1")] * 2 + [("finished", "0")] * 2
        assert {"failed", "finished", "memory,", "exit"} <= set(verb("history", "--by", "job", *at).out.split())
        assert {"user", "queue", "jobs"} <= set(re.findall(r"[\w-]+", verb("history", *at).out))
        assert verb("history", "--user", "nobody", "--json", *at).json()["rows"] == []
        assert verb("history", "--until", "2001-01-01", "--json", *at).json()["rows"] == []
        assert "expected some of user, queue, day, job" in verb("history", "--by", "colour", *at).refusal()
        assert "--since: expected a day" in verb("history", "--since", "lately", *at).refusal()
