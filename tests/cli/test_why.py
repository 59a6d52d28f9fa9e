"""`kant why`: each kind of reason, reached by a small run, with its evidence and what would free the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command import kant

PLAIN = "id,submit_s,runtime_s,gpus,limit_s"
TENANT = "id,submit_s,runtime_s,gpus,queue"
TWO_QUEUES = """
[[queue]]
name = "all"
[[queue]]
name = "a"
parent = "all"
gpus = 4
[[queue]]
name = "b"
parent = "all"
gpus = 4
"""
PROFILE = """
name = "retries"
[order]
policy = "fifo"
[discipline]
policy = "best-effort"
[placement]
policy = "best-fit"
[requeue]
base_s = 600
[simulation]
enforce_limits = true
retries = {retries}
"""


class Runs:
    """Runs a few jobs and asks about them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "out" / "journal.jsonl"

    def run(self, rows: str, *flags: str, queues: str = "", profile: str = "fifo-best-effort") -> None:
        """Rows of a trace, its heading first and parted by blanks, on one node of 8 GPUs."""
        trace = self.folder / "jobs.csv"
        trace.write_text("\n".join(rows.split()) + "\n")
        if queues:
            (self.folder / "queues.toml").write_text(queues)
            flags = (*flags, "--queues", str(self.folder / "queues.toml"))
        if "\n" in profile:
            (self.folder / "profile.toml").write_text(profile)
            profile = str(self.folder / "profile.toml")
        common = ("--profile", profile, "--out", self.folder / "out", "--json")
        kant("simulate", trace, "--cluster", "1x8", *flags, *common).json()

    def lines(self, job: str, at: str) -> list[str]:
        """What `kant why` prints, a line each, without the spaces in front."""
        found = kant("why", job, self.journal, "--at", at)
        assert found.code == 0, found
        return [line.strip() for line in found.out.splitlines()]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_no_fit_says_how_many_are_short_who_holds_them_and_whose_end_frees_it(runs: Runs) -> None:
    runs.run(f"{PLAIN} runs,0,3600,6,3600 short,0,600,1,600 wants,60,600,4,600")
    assert runs.lines("wants", "2m") == [
        "wants: not enough free capacity: 0 of 1 pods fit now",
        "at 0d 00:02:00 it has waited 1m for 4 GPUs in 1 pod in queue default, priority 0",
        "evidence",
        "1 of 8 GPUs are free in all, on 1 of 1 node",
        "0 of 1 node have 4 whole GPUs free; the gang needs 1 or more: 1 pod does not fit",
        "queue default holds 7 GPUs (2 jobs)",
        "job short is expected to end at 0d 00:10:00 and holds 1 GPU",
        "job runs is expected to end at 0d 01:00:00 and holds 6 GPUs",
        "what would let it start",
        "job runs ends (expected at 0d 01:00:00): then it fits",
        "starts now if",
        "job runs stops: 0.2 GPU-hours lost (proven the cheapest)",
        "1 more node like node-00000 (8 GPUs) comes",
        "position",
        "1 of 1 among the waiting jobs that compete for its GPUs, 1 of 1 in its queue",
        "expected start",
        "P50 and P90 0d 01:00:00 (in 58m)",
        "job runs ends, expected at 0d 01:00:00",
        "not calibrated: too few earlier answers about such jobs are known, so this is the uncorrected forecast",
        "waited so far",
        "1m: capacity 1m",
    ]


def test_behind_says_who_is_first_and_what_keeps_that_one(runs: Runs) -> None:
    runs.run(f"{PLAIN} runs,0,3600,6,3600 head,0,600,4,600 behind,0,600,1,600", profile="fifo")
    lines = runs.lines("behind", "1m")
    assert lines[0] == "behind: job head is ahead of it and may not be passed in its queue"
    assert "job head has waited since 0d 00:00:00: not enough free capacity: 0 of 1 pods fit now" in lines
    assert "2 of 8 GPUs are free in all, on 1 of 1 node" in lines
    assert "job head starts or leaves: then it would start" in lines
    assert "2 of 2 among the waiting jobs that compete for its GPUs, 2 of 2 in its queue" in lines
    assert lines[-1] == "1m: order 1m"


def test_an_equal_job_ahead_is_no_matter_of_the_queue_and_may_take_the_place(runs: Runs) -> None:
    """Under backfill the queue lets others pass; what would free a place frees it for the first job."""
    runs.run(f"{PLAIN} runs,0,3600,6,3600 head,0,600,4,600 second,0,600,4,600 third,0,600,4,600", profile="kant")
    assert "starts now if" in runs.lines("head", "1m")
    lines = runs.lines("second", "1m")
    assert lines[0] == "second: job head is ahead of it and asks for the same"
    assert "starts now, unless a job before it takes the place, if" in lines
    assert "starts now, unless one of 2 jobs before it takes the place, if" in runs.lines("third", "1m")


def test_over_quota_says_whose_and_how_much(runs: Runs) -> None:
    runs.run(f"{TENANT} borrows,0,3600,6,b own,60,600,4,a beyond,60,600,3,b", queues=TWO_QUEUES)
    lines = runs.lines("own", "2m")
    assert lines[0] == "own: over quota: it asks for 4 GPUs, and queue all has 2 GPUs left"
    assert "queue a uses 0 GPUs of its quota of 4 GPUs: 2 GPUs of the rest are in use by others" in lines
    assert "queue b uses 2 GPUs more than its own quota" in lines
    assert "job borrows ends (expected at 0d 01:00:00): then it fits" in lines
    assert lines[-1] == "1m: quota-lent 1m"
    lines = runs.lines("beyond", "2m")
    assert "queue b uses 6 GPUs of its quota of 4 GPUs: it borrows 2 GPUs" in lines
    assert any(line.startswith("1 more GPU") and "of quota in queue b" in line for line in lines)


def test_reserved_says_for_whom_until_when_and_how_short_it_would_have_to_be(runs: Runs) -> None:
    runs.run(f"{PLAIN} runs,0,3600,6,3600 head,0,600,8,600 long,0,7200,2,7200", profile="easy")
    lines = runs.lines("long", "30m")
    assert lines[0] == "long: capacity that it needs is reserved for job head from 0d 01:00:00 on"
    assert "job head has a reservation of 8 GPUs on 1 node from 0d 01:00:00 to 0d 01:10:00 (since 0d 00:00:00)" in lines
    assert "it would start now if it ran for at most 30m" in lines
    assert lines[-1] == "30m: reservation 30m"
    assert "it has a reservation of 8 GPUs on 1 node from 0d 01:00:00 to 0d 01:10:00 (since 0d 00:00:00)" in runs.lines(
        "head", "30m"
    )


def test_closed_says_which_queue(runs: Runs) -> None:
    runs.run(f"{TENANT} a,0,600,1,open b,0,600,1,shut", "--until", "1h", queues="""
[[queue]]
name = "open"
gpus = 4
[[queue]]
name = "shut"
gpus = 4
state = "hold"
""")  # fmt: skip
    lines = runs.lines("b", "30m")
    assert lines[0] == "b: queue shut is on hold: it starts no jobs"
    assert "queue shut is opened: then it would start" in lines
    assert "P50 and P90 unknown" in lines
    assert lines[-1] == "30m: gated 30m"


def test_back_off_says_until_when_and_retries_used_is_the_end(runs: Runs) -> None:
    runs.run(f"{PLAIN} fails,0,3600,4,60", profile=PROFILE.format(retries=1))
    lines = runs.lines("fails", "2m")
    assert lines[0] == "fails: it returned to the queue once and is tried again at 0d 00:11:00"
    assert "it is tried again at 0d 00:11:00: then it would start" in lines
    assert "P50 and P90 0d 00:11:00 (in 9m)" in lines
    assert lines[-1] == "1m: gated 1m"
    assert runs.lines("fails", "12m")[0] == (
        "fails: it does not wait, it was rejected at 0d 00:12:00: it has failed 2 times and has no retries left"
    )


def test_core_waits_says_which_core_and_what_keeps_it(runs: Runs) -> None:
    runs.run("id,submit_s,runtime_s,gpus,core runs,0,3600,6, server,0,600,4, burst,0,600,1,server")
    lines = runs.lines("burst", "1m")
    assert lines[0] == "burst: it is a burst replica of job server, which is not running"
    assert "job server has waited since 0d 00:00:00: not enough free capacity: 0 of 1 pods fit now" in lines
    assert "job server starts or leaves: then it would start" in lines
    assert lines[-1] == "1m: gated 1m"


def test_what_can_never_start_was_given_back_and_says_why(runs: Runs) -> None:
    runs.run(
        f"{TENANT} huge,0,600,16,a wide,0,600,6,b fits,0,600,1,a",
        queues=TWO_QUEUES.replace("gpus = 4\n", "isolated = true\ngpus = 4\n"),
    )
    assert "more than any quota: it asks for 16 GPUs" in runs.lines("huge", "1m")[0]
    assert "rejected at 0d 00:00:00: more than any quota: it asks for 6 GPUs" in runs.lines("wide", "1m")[0]
    runs.run("id,submit_s,runtime_s,gpus,pods huge,0,600,8,2 fits,0,600,1,1")
    assert runs.lines("huge", "1m")[0] == (
        "huge: it does not wait, it was rejected at 0d 00:00:00: "
        "it can never fit: the empty cluster has room for 1 of 2 pods"
    )


def test_of_jobs_that_do_not_wait_it_says_what_became_of_them(runs: Runs) -> None:
    runs.run(f"{PLAIN} first,0,600,8,600 second,60,600,8,600")
    lines = runs.lines("second", "15m")
    assert lines[0] == "second: it does not wait, it has run since 0d 00:10:00"
    assert lines[-1] == "9m: capacity 9m"
    assert "it ran from 0d 00:10:00 and finished at 0d 00:20:00" in kant("why", "second", runs.journal).out


def test_as_json_it_has_every_number(runs: Runs) -> None:
    runs.run(f"{PLAIN} runs,0,3600,6,3600 head,0,600,8,600 long,0,7200,2,7200", profile="easy")
    found = kant("why", "long", runs.journal, "--at", "30m", "--json").json()
    assert found["reason"] == {"why": "reserved", "job": "head", "start": 3_600_000_000}
    assert found["status"] == "pending" and found["in_queue"] == {"rank": 2, "of": 2}
    assert found["facts"][0]["fact"]["about"] == "promise" and found["facts"][0]["sentence"]
    assert found["remedies"] == [
        {"remedy": {"if": "shorter", "runtime": 1_800_000_000},
         "sentence": "it would start now if it ran for at most 30m"}
    ]  # fmt: skip
    assert found["expected_us"] == {"p50": 4_200_000_000, "p90": 4_200_000_000, "never": False}
    assert found["waited_us"]["total"] == found["waited_us"]["reservation"] == 1_800_000_000
    assert kant("why", "runs", runs.journal, "--at", "30m", "--json").json()["status"] == "running"


def test_questions_that_have_no_answer_get_one_sentence(runs: Runs) -> None:
    runs.run(f"{PLAIN} runs,0,3600,6,3600 later,1800,600,8,600")
    journal, trace = runs.journal, runs.folder / "jobs.csv"
    assert f"JOB: expected a job of {journal}, got 'nobody'" in kant("why", "nobody", journal).refusal()
    assert "a time in the journal, which ends at 0d 01:10:00" in kant("why", "runs", journal, "--at", "9d").refusal()
    assert "from 0d 00:30:00 on, when job later arrives" in kant("why", "later", journal, "--at", "1m").refusal()
    assert "expected a duration such as" in kant("why", "runs", journal, "--at", "noon").refusal()
    assert "expected a line of a Kant journal" in kant("why", "runs", trace).refusal()
    assert "expected a journal that can be read" in kant("why", "runs", runs.folder / "none").refusal()
    journal.write_bytes(b"\n".join(journal.read_bytes().splitlines()[:1] * 2) + b"\n")
    assert "expected" in kant("why", "runs", journal).refusal()
