"""A workflow file that is submitted: all stages or none, in their order, and what is known of each."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.cli.command import kant as verb
from tests.local.up import Up, asked, eventually

from kant.model.errors import InputError
from kant.service.views import JobDetail

NIGHTLY = """\
[[stage]]
id = "report"
run = "cat part-* > report"
duration = "5m"
after = ["left", "right"]

[[stage]]
id = "prepare"
run = "echo data > data"
duration = "10m"
gpus = 1

[[stage]]
id = "left"
run = ["cp", "data", "part-left"]
duration = "2h"
gpus = 0.5
after = ["prepare"]

[[stage]]
id = "right"
run = "cat data > part-right"
duration = "30m"
after = ["prepare"]
env = {SIDE = "right"}
"""


def written(folder: Path, text: str, name: str = "nightly.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def count(kant: Up) -> int:
    """How many jobs there have ever been."""
    jobs = kant.client.get("/v1/jobs", limit=1)["jobs"]
    return jobs[0]["seq"] if jobs else 0


def test_stages_run_in_their_order(kant: Up, tmp_path: Path) -> None:
    path = written(tmp_path, NIGHTLY)
    done = verb("submit", "--graph", path, "--workdir", tmp_path, "--home", kant.home, "--json").json()
    assert list(done["stages"]) == ["prepare", "left", "right", "report"] and set(done["stages"].values()) == {
        *done["jobs"]
    }
    assert kant.over(*done["jobs"]) == ["finished"] * 4
    assert (tmp_path / "report").read_text() == "data\ndata\n"
    rows = {stage: msgspec.convert(kant.job(job), JobDetail) for stage, job in done["stages"].items()}
    assert rows["left"].job.name == "nightly/left" and rows["left"].job.gpus == 0.5
    assert rows["left"].after_ok == (done["stages"]["prepare"],) and "SIDE" in rows["right"].env
    ends = {stage: row.job.ended for stage, row in rows.items()}
    assert (
        ends["prepare"] <= rows["left"].job.started and max(ends["left"], ends["right"]) <= rows["report"].job.started
    )


def test_it_is_known_what_is_critical_and_what_may_slip(kant: Up, tmp_path: Path) -> None:
    path = written(tmp_path, NIGHTLY)
    lines = verb("submit", "--graph", path, "--name", "tonight", "--hold", "--home", kant.home).out.splitlines()
    ids = {stage: job for job, _, stage in (line.partition(" ") for line in lines)}
    text = verb("show", ids["left"], "--home", kant.home).out
    assert "tonight/left, held" in text and "stage left of tonight" in text
    assert "it is critical; the critical path takes 2h 15m: prepare -> left -> report" in text
    assert "it has 1h 30m of slack" in verb("show", ids["right"], "--home", kant.home).out
    assert "it has 1h 30m of slack" in verb("why", ids["right"], "--home", kant.home).out
    found = verb("why", ids["right"], "--home", kant.home, "--json").json()["stage"]
    assert found == {
        "workflow": "tonight", "stage": "right", "critical_path": ["prepare", "left", "report"], "length_s": 8100.0,
        "slack_s": 5400.0,
    }  # fmt: skip
    unknown = written(tmp_path, NIGHTLY.replace('duration = "2h"\n', ""))
    (first, *_) = verb("submit", "--graph", unknown, "--hold", "--home", kant.home, "--json").json()["jobs"]
    text = verb("show", first, "--home", kant.home).out
    assert "stage prepare of nightly" in text and "critical" not in text
    alone = kant.submit("true")
    assert "workflow" not in verb("show", alone, "--home", kant.home).out


def test_a_stage_that_fails_takes_those_with_it_that_need_it(kant: Up, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        [[stage]]
        id = "fails"
        run = "exit 3"
        [[stage]]
        id = "needs"
        run = "true"
        after = ["fails"]
        [[stage]]
        id = "clean"
        run = "true"
        after_any = ["fails", "needs"]
        """,
    )
    ids = verb("submit", "--graph", path, "--home", kant.home, "--json").json()["stages"]
    assert kant.over(*ids.values()) == ["failed", "cancelled", "finished"]
    assert verb("submit", "--graph", path, "--home", kant.home, "--wait").code == 3


def test_a_workflow_waits_for_other_jobs_as_a_whole(kant: Up, tmp_path: Path) -> None:
    before = kant.submit("true", hold=True)
    path = written(tmp_path, NIGHTLY)
    ids = verb("submit", "--graph", path, "--after-ok", before, "--home", kant.home, "--json").json()["stages"]
    assert eventually(lambda: kant.phase(ids["prepare"]) == "blocked")
    assert kant.job(ids["prepare"])["after_ok"] == [before] and kant.job(ids["left"])["after_ok"] == [ids["prepare"]]
    kant.client.post(kant.client.job(before, "cancel"))
    assert kant.over(*ids.values()) == ["cancelled"] * 4


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("gpus = 1", "gpus = 9", ["stage prepare, gpus", "at most 8", "9"]),
        ("gpus = 1", "gpus = 1.5", ["stage prepare, gpus", "whole number", "1.5"]),
        ('env = {SIDE = "right"}', 'env = {"A=B" = "right"}', ["stage right, env", "names without"]),
        ('"echo data > data"', '""', ["line 9", "stage prepare, run", "a command"]),
        ('run = "echo data > data"\n', "", ["stage prepare, run", "a command"]),
        ('duration = "30m"\nafter', 'duration = "30m"\ntime = "soon"\nafter', ["line 24", "stage right, time", "soon"]),
        (
            'duration = "30m"\nafter',
            'duration = "30m"\nmemory = "much"\nafter',
            ["stage right, memory", "16GiB", "much"],
        ),
        ('["prepare"]', '["report"]', ["cycle", "left -> report"]),
        ('["prepare"]', '["nobody"]', ["line 18", "stages of the file", "nobody"]),
        ('duration = "10m"', 'duration = "soon"', ["stage prepare, duration", "soon"]),
    ],
)
def test_nothing_is_submitted_of_a_workflow_with_a_fault(
    kant: Up, tmp_path: Path, old: str, new: str, says: list[str]
) -> None:
    assert old in NIGHTLY
    before = count(kant)
    path = written(tmp_path, NIGHTLY.replace(old, new, 1), "bad.toml")
    sentence = verb("submit", "--graph", path, "--home", kant.home).refusal()
    assert all(part in sentence for part in says), sentence
    assert count(kant) == before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--gpus", "1"), "--gpus"),
        (("--time", "1h"), "--time"),
        (("--array", "0-1"), "--array"),
        (("--", "true"), "COMMAND"),
        (("--after-ok", "999999"), "999999"),
    ],
)
def test_what_stages_say_is_not_said_beside_them(kant: Up, tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    before = count(kant)
    assert says in verb("submit", "--home", kant.home, "--graph", written(tmp_path, NIGHTLY), *options).refusal()
    assert count(kant) == before


def test_the_service_takes_no_stage_that_waits_for_a_later_one(kant: Up) -> None:
    before = count(kant)
    job = asked(kant.home, "true")
    for stages, says in (
        ([{"job": job, "after": [0]}], "stage 0, after: expected indices of earlier stages"),
        ([{"job": job}, {"job": job, "after_ok": [2]}, {"job": job}], "stage 1, after"),
        ([{"job": job}, {"job": job | {"array": [0, 1]}}], "stage 1, array"),
        ([{"job": job}, {"job": job | {"gpus": 9}}], "stage 1, gpus: expected at most 8"),
        ([{"job": job}, {"job": job | {"workdir": "here"}}], "stage 1, workdir"),
        ([], "expected a valid body"),
    ):
        with pytest.raises(InputError, match=says):
            kant.client.post("/v1/workflows", {"stages": stages})
        assert count(kant) == before


def test_on_kubernetes_there_are_no_workflows(tmp_path: Path) -> None:
    sentence = verb("submit", "--kube", "--graph", written(tmp_path, NIGHTLY)).refusal()
    assert "--graph: expected none on Kubernetes" in sentence
