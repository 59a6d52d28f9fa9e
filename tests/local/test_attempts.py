"""Runs of a job: each has its output and what it used, and says what of its output is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.command import kant as verb
from tests.local.test_bad_days import small_disk
from tests.local.up import Up, eventually

from kant.local.output import read_output
from kant.local.supervisor import Log

__all__ = ["small_disk"]


def test_each_run_has_its_output_and_what_it_used(kant: Up) -> None:
    script = "echo run $KANT_ATTEMPT; test $KANT_ATTEMPT = 3 || exit $KANT_ATTEMPT"
    job = kant.submit(script, retries=3, name="thrice", time_s=60)
    assert kant.over(job) == ["finished"]
    for given, said in (("1", "run 1\n"), ("2", "run 2\n"), ("3", "run 3\n"), ("0", "run 3\n")):
        assert verb("logs", job, "--attempt", given, "--home", kant.home).out == said
    assert verb("logs", job, "--attempt", "1", "--follow", "--home", kant.home).out == "run 1\n"
    said = verb("logs", job, "--attempt", "4", "--home", kant.home).refusal()
    assert f"attempt: expected a run of job {job}, from 1 to 3, got 4" in said
    found = verb("show", job, "--json", "--home", kant.home).json()
    assert [(run["number"], run["code"]) for run in found["attempts"]] == [(1, 1), (2, 2), (3, 0)]
    assert all(run["ran_us"] >= 0 and run["cpu_us"] > 0 and run["rss_kib"] > 100 for run in found["attempts"])
    text = verb("show", job, "--home", kant.home).out
    assert text.startswith(f"{job}: thrice, finished") and "at most 1m" in text and "3 retries" in text
    assert re.search(r"\n  2  exit code 2 after .*: \d+\.\d\d s of a core, [\d.]+ MiB\n", text)


def test_of_a_job_that_waits_or_runs_what_is_known_is_shown(kant: Up) -> None:
    runs = kant.submit("sleep 60", gpus=4, grace_s=0.1)
    waits = verb(
        "submit", "--home", kant.home, "--gpus", "8", "--after-ok", runs, "--name", "\x1b[2Jname", "--", "true"
    ).out.strip()
    assert eventually(lambda: kant.phase(runs) == "running")
    text = verb("show", runs, "--home", kant.home).out
    assert "GPUs 0,1,2,3" in text and "\n  1  running\n" in text
    text = verb("show", waits, "--home", kant.home).out
    assert f"it depends on job {runs}, which has not ended" in text and f"{runs} (must succeed)" in text
    assert "\x1b" not in text
    assert "the id of a job" in verb("show", "99", "--home", kant.home).refusal()
    kant.client.post(kant.client.job(runs, "cancel"))
    kant.over(runs, waits)


def test_a_log_says_at_its_end_what_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    real, full = os.write, [True]

    def write(file: int, data: bytes) -> int:
        if full[0]:
            raise OSError(28, "No space left on device")
        return real(file, data)

    monkeypatch.setattr("kant.local.supervisor.os.write", write)
    log = Log(str(tmp_path), 1000)
    log.write(b"a" * 10)
    assert not log.note() and log.dropped == 10
    full[0] = False
    assert log.note() and log.note()
    log.write(b"b")
    assert read_output(tmp_path).data == b"\n[kant: 10 bytes of output are lost: the disk was full]\nb"
    assert (log.dropped, log.lost) == (10, 0)


def test_output_that_a_full_disk_loses_is_noted_wherever_one_asks(small_disk: Path) -> None:
    with Up(small_disk, "2x4") as kant:
        filler = small_disk / "filler"
        job = kant.submit(f"cat /dev/zero > {filler} 2>/dev/null; echo 0123456789 | tr -d '\\n'")
        assert eventually(lambda: kant.client.get(kant.client.job(job))["attempts"][:1] != [])
        assert eventually(lambda: kant.client.get(kant.client.job(job))["attempts"][0]["ran_us"] >= 0)
        assert kant.client.get(kant.client.job(job))["attempts"][0]["dropped"] == 10
        filler.unlink()
        assert kant.over(job) == ["finished"]
        said = "10 bytes of its output are lost: the disk was full"
        assert kant.job(job)["job"]["reason"] == said
        assert said in kant.client.get(kant.client.job(job, "why"))["sentence"]
        assert said in verb("logs", job, "--home", kant.home).err
        assert "10 bytes of output are lost" in verb("show", job, "--home", kant.home).out
