"""Slurm's accounting: what becomes of each column, and what is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant

from kant.model.errors import InputError
from kant.model.units import DAY, HOUR, MINUTE, SECOND, WEEK
from kant.workload.anonymous import MONDAY, anonymous
from kant.workload.read import read_workload
from kant.workload.slurm import _duration, read_sacct

Put = Callable[[str, str | bytes], Path]

# ruff: noqa: E501 - the lines are those of sacct
HEAD = "JobID|User|Account|Partition|Submit|Eligible|Start|Elapsed|Timelimit|State|NNodes|AllocTRES|JobName\n"
SACCT = (
    HEAD
    + """\
812|mia|vision|a100|2026-10-05T08:00:00|2026-10-05T08:00:00|2026-10-05T08:30:00|1-02:00:00|2-00:00:00|COMPLETED|2|cpu=64,gres/gpu=16,mem=480G|pre|train
812.batch||vision||2026-10-05T08:30:00|2026-10-05T08:30:00|2026-10-05T08:30:00|1-02:00:00||COMPLETED|1|cpu=32,mem=240G|batch
811_3|leo|speech|a100|2026-10-05T07:00:00|2026-10-05T09:15:00|2026-10-05T09:20:00|00:45:10|UNLIMITED|CANCELLED by 1001|1|cpu=8,gres/gpu:a100=1,gres/gpu:h100=2,mem=1.5T|array
813|mia|vision|cpu|2026-10-05T10:00:00|2026-10-05T10:00:00|2026-10-05T10:00:00|00:10:00|01:00:00|COMPLETED|1|cpu=4,mem=8G|prep
814|leo|speech|a100|2026-10-05T11:00:00|Unknown|Unknown|00:00:00|01:00:00|PENDING|1||wait
815|leo|speech|a100|2026-10-05T11:00:00|2026-10-05T11:00:00|2026-10-05T11:00:00|02:00|Partition_Limit|RUNNING|3|cpu=12,gres/gpu=4,mem=100M|odd
"""
)


def test_a_line_becomes_a_gang_of_its_nodes(put: Put) -> None:
    jobs = read_sacct(put("october.txt", SACCT))
    assert jobs.ids == ["812", "811_3", "815"]  # by when they could start
    assert jobs.submit.tolist() == [0, HOUR + 15 * MINUTE, 3 * HOUR]
    assert jobs.runtime.tolist() == [26 * HOUR, 45 * MINUTE + 10 * SECOND, 2 * MINUTE]
    assert jobs.limit.tolist() == [2 * DAY, -1, -1]
    assert jobs.pods.tolist() == [2, 1, 0] and jobs.gpus.tolist() == [8, 3, 4]
    assert jobs.total_gpus.tolist() == [16, 3, 4]
    assert jobs.cpu.tolist() == [32_000, 8_000, 4_000] and jobs.memory.tolist() == [245_760, 1_572_864, 34]
    assert [jobs.queues[code] for code in jobs.queue] == ["vision", "speech", "speech"]
    assert [jobs.users[code] for code in jobs.user] == ["mia", "leo", "leo"]
    assert [jobs.titles[code] for code in jobs.title] == ["pre|train", "array", "odd"]
    assert jobs.notes == (
        "1 jobs left out: they have no GPU",
        "1 jobs left out: they never ran",
        "1 jobs still run: they count with their run time so far",
    )


def test_queues_can_be_partitions_and_jobs_without_gpus_kept(put: Put) -> None:
    jobs = read_sacct(put("october.txt", SACCT), queue="Partition", cpu_jobs=True)
    assert jobs.queues == ("a100", "cpu") and jobs.gpus.tolist() == [8, 3, 0, 4]


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_a_duration_is_read_back(days: int, hours: int, minutes: int, seconds: int) -> None:
    whole = ((days * 24 + hours) * 60 + minutes) * MINUTE + seconds * SECOND
    assert _duration(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == whole
    assert _duration(f"{days * 24 + hours:02}:{minutes:02}:{seconds:02}") == whole


def test_an_anonymous_trace_names_nobody_and_keeps_the_hours(put: Put) -> None:
    jobs = read_sacct(put("october.txt", SACCT))
    hidden = anonymous(jobs)
    assert hidden.queues == ("queue-1", "queue-2") and hidden.users == ("user-1", "user-2")
    assert hidden.titles == ("job-1", "job-2", "job-3") and hidden.ids == ["0", "1", "2"]
    assert (hidden.submit == jobs.submit).all() and 0 <= hidden.origin < WEEK
    assert (jobs.origin - MONDAY - hidden.origin) % WEEK == 0
    assert hidden.origin == 8 * HOUR  # 2026-10-05 is a Monday


def test_the_command_writes_a_trace_that_simulates(put: Put, tmp_path: Path) -> None:
    target = tmp_path / "jobs.csv"
    said = kant("trace", "from-slurm", put("october.txt", SACCT), target, "--anonymous")
    assert said.code == 0 and "3 jobs written" in said.out and "they never ran" in said.out
    assert not any(word in target.read_text() for word in ("mia", "leo", "vision", "speech", "pre|train", "812"))
    assert len(read_workload(target)) == 3
    assert kant("simulate", target, "--cluster", "2x8", "--json").json()["completed"] == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("JobID|User\n1|me\n", "line 1"),
        (HEAD + "1|me\n", "line 2"),
        (SACCT.replace("1-02:00:00|2-", "soon|2-"), "line 2, column Elapsed"),
        (SACCT.replace("2026-10-05T08:00:00|2026", "yesterday|2026"), "line 2, column Submit"),
        (SACCT.replace("gres/gpu=16", "gres/gpu=many"), "line 2, column AllocTRES"),
        (SACCT.replace("gres/gpu=16", "gres/gpu=99999999999"), "line 2, column AllocTRES"),
        (SACCT.replace("mem=480G", "mem=480Q"), "line 2, column AllocTRES"),
        (SACCT.replace("COMPLETED|2|", "COMPLETED|two|"), "line 2, column NNodes"),
        (HEAD, "at least one job"),
        ("", "line 1"),
    ],
)
def test_what_is_no_accounting_is_refused_with_the_line(put: Put, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_sacct(put("bad.txt", text))
