"""Who waits: in the order in which they are tried, a page at a time, each with its reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

from kant.workload.tenants_file import read_tenants

QUEUES = """
[[queue]]
name = "vision"
gpus = 4
[[queue]]
name = "speech"
gpus = 4
"""


@pytest.fixture(scope="module")
def kant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Eight GPUs that are busy, and thirty jobs of two queues that wait, some of them blocked or held."""
    folder = tmp_path_factory.mktemp("up")
    (folder / "queues.toml").write_text(QUEUES)
    with Up(folder / "home", queue_config=read_tenants(folder / "queues.toml")) as up:
        first = [
            up.submit("sleep 600", gpus=4, queue=name, grace_s=0.1, preemptible=False) for name in ("vision", "speech")
        ]
        assert eventually(lambda: [up.phase(job) for job in first] == ["running"] * 2)
        for i in range(24):
            up.submit("true", gpus=1 + i % 3, queue=("vision", "speech")[i % 2], priority=i % 5)
        held = [up.submit("true", hold=True, queue="vision") for _ in range(3)]
        for job in held:
            up.submit("true", after=[job], queue="speech")
        yield up
        for row in up.client.get("/v1/jobs", limit=1000)["jobs"]:
            up.client.post(up.client.job(row["id"], "cancel"))


def test_pages_of_who_waits_are_the_order_of_the_queue(kant: Up) -> None:
    whole = kant.client.get("/v1/waiting", limit=100)
    assert (len(whole["jobs"]), whole["total"], whole["next"]) == (30, 30, None)
    order = [row["job"] for row in kant.client.get("/v1/eta")["jobs"]]
    assert [row["id"] for row in whole["jobs"] if row["place"]] == order and len(order) == 24
    assert [row["place"] for row in whole["jobs"]] == [*range(1, 25), *[0] * 6]
    assert [row["phase"] for row in whole["jobs"][24:]] == ["blocked"] * 3 + ["held"] * 3
    for limit in (1, 7, 30):
        found, after = list[dict[str, Any]](), 0
        for _ in itertools.count():
            page = kant.client.get("/v1/waiting", limit=limit, after=after)
            found += page["jobs"]
            after = page["next"]
            if after is None:
                break
        assert found == whole["jobs"]
    vision = kant.client.get("/v1/waiting", limit=100, queue="vision")
    assert vision["jobs"] == [row for row in whole["jobs"] if row["queue"] == "vision"]
    assert kant.client.get("/v1/waiting", user="nobody")["total"] == 0


def test_every_job_that_waits_says_why(kant: Up) -> None:
    rows = kant.client.get("/v1/waiting", limit=100)["jobs"]
    assert all(row["waits"] for row in rows)
    for row in rows:
        assert row["waits"] == kant.client.get(kant.client.job(row["id"], "why"))["sentence"]
    assert {row["waits"] for row in rows if row["phase"] == "held"} == {
        f"it is held (kant release {row['id']})" for row in rows if row["phase"] == "held"
    }
    listed = kant.client.get("/v1/jobs", state="waiting,blocked", limit=1000)["jobs"]
    assert len(listed) == 27 and all(row["waits"] for row in listed)
    held = kant.client.get("/v1/jobs", state="held", limit=1000)["jobs"]
    assert [row["waits"] for row in held] == [f"it is held (kant release {row['id']})" for row in held] != []
    assert "ahead of it" in verb("jobs", "--home", kant.home, "--state", "waiting").out


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "after=-1", "after=x"])
def test_what_is_no_page_is_refused(kant: Up, query: str) -> None:
    name, _, value = query.partition("=")
    with pytest.raises(Exception, match=name):
        kant.client.get("/v1/waiting", **{name: value})


def test_before_there_is_a_state_jobs_wait_for_kant(tmp_path: Path) -> None:
    with Up(tmp_path / "home", early=True) as kant:
        job = kant.submit("sleep 600", gpus=4, grace_s=0.1)
        assert kant.client.get("/v1/waiting")["total"] in (0, 1)
        kant.client.post(kant.client.job(job, "cancel"))
        kant.over(job)
