"""What-ifs and expected starts of a Kant that runs: over the API, and by the command line."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.command import kant as command
from tests.local.up import Up, asked, eventually

from kant.model.errors import InputError
from kant.service.low_priority import memory_left, most_memory
from kant.service.views import Futures
from kant.service.whatif import TooLongError, WhatIfBusyError, WhatIfDesk
from kant.sim.question import Question


@pytest.fixture(scope="module")
def kant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Eight GPUs, of which job 1 has all for an hour; job 2 waits for them, and job 3, which has come twice."""
    with Up(tmp_path_factory.mktemp("up") / "home") as up:
        full = up.submit("sleep 600", gpus=8, time_s=3600)
        assert eventually(lambda: up.phase(full) == "running")
        up.submit("true", gpus=8, time_s=1800)
        again = up.submit("true", gpus=4, time_s=600)
        assert eventually(lambda: up.phase(again) == "waiting" and up.job(again)["job"]["waits"] != "")
        up.client.post(up.client.job(again, "hold"))
        up.client.post(up.client.job(again, "release"))
        assert eventually(lambda: [row["job"] for row in up.client.get("/v1/eta")["jobs"]] == ["2", "3"])
        yield up
        up.client.post(up.client.job(full, "cancel"))


def ask(up: Up, **question: Any) -> Futures:
    return msgspec.convert(up.client.post("/v1/whatif", question), Futures)


def test_a_change_is_tried_on_what_is_there_now_and_nothing_happens(kant: Up) -> None:
    journal = Path(kant.client.get("/v1/health")["journal"])
    before = journal.read_bytes()
    found = ask(kant, submit=["gpus=4,time=2h"], nodes=["1"], until="+1d")
    assert [sentence.partition(" (")[0] for sentence in found.change] == ["whatif-1 is submitted", "1 more node"]
    assert (found.coming, found.run_times) == (0, {"estimate": 3})
    assert found.waits["all"]["jobs"] == 2 and found.waits["all"]["sooner"]["jobs"] == 1
    assert [row["job"] for row in found.helped] == ["3"]  # by its own name, though it came to the core as another
    assert len(found.curve["before_s"]) == len(found.curve["after_s"]) == 101
    assert found.curve["before_s"] == sorted(found.curve["before_s"])
    assert 3500 < found.curve["before_s"][0] <= found.curve["before_s"][-1] < 5500
    assert found.submitted[0]["start_us"] is not None
    assert journal.read_bytes() == before and kant.client.get("/v1/health")["jobs"] == 3


def test_a_job_that_is_only_tested_is_told_its_start_and_is_not_there(kant: Up) -> None:
    before = kant.client.get("/v1/health")["jobs"]
    done = command("submit", "--test-only", "--gpus", "8", "--time", "1h", "--home", kant.home, "--", "true")
    assert (done.code, done.err) == (0, "") and re.match(r"this job: P50 \d{4}-.* \(in 1h \d+m\)", done.out)
    (row,) = command("submit", "--json", "--test-only", "--gpus", "2", "--home", kant.home, "--", "true").json()["jobs"]
    assert (row["place"], row["of"], row["expected_us"]["never"]) == (3, 3, False)
    assert command("submit", "--test-only", "--wait", "--home", kant.home, "--", "true").err == (
        "kant: --test-only: expected a single job that is only tested, not submitted, got '--wait'\n"
    )
    for asked_for, sentence in (({"gpus": 9}, "at most 8"), ({"gpus": 1, "array": (0, 1)}, "one job")):
        with pytest.raises(InputError, match=sentence):
            kant.client.post("/v1/eta", {"command": ["true"], "workdir": "/", **asked_for})
    assert kant.client.get("/v1/health")["jobs"] == before


def test_what_cannot_be_meant_is_said_in_one_sentence(kant: Up) -> None:
    for question, sentence in (
        ({}, "whatif: expected at least one of --submit, --drain, --quota, --nodes, --cancel and --profile"),
        ({"drain": ["leaf-9"]}, "--drain: expected a node, leaf, spine or other part of the fabric of 2x4, "),
        ({"profile": "/etc/passwd"}, "profile: expected one of aged, "),
        ({"submit": ["gpus=1"]}, "--submit: expected also time, such as time=4h"),
        ({"nodes": ["1"], "until": "25:00Z"}, "--until: expected a date such as 2026-01-31T22:00Z, or 22:00Z"),
        ({"nodes": "1"}, "the request: expected a valid body"),
    ):
        with pytest.raises(InputError) as raised:
            kant.client.post("/v1/whatif", question)
        assert str(raised.value).startswith(sentence)


def test_the_command_line_asks_the_kant_that_runs(kant: Up, tmp_path: Path) -> None:
    told = command("whatif", "--home", kant.home, "--drain", "node-00000@+10m..+2h", "--out", tmp_path / "out")
    assert told.code == 0, told
    assert "node-00000 (1 node) is drained from 20" in told.out and "3 as stated by their owners" in told.out
    assert (tmp_path / "out" / "report.html").exists()
    refused = command("whatif", "--home", kant.home, "--at", "1h", "--nodes", "1").refusal()
    assert "expected a journal; a running Kant" in refused
    assert "`kant up`" in command("whatif", "--home", tmp_path, "--nodes", "1").refusal()


def test_a_job_has_an_expected_start_a_position_and_a_reason(kant: Up) -> None:
    (row,) = command("eta", "3", "--home", kant.home, "--json").json()["jobs"]
    assert (row["job"], row["place"], row["of"], row["why"]) == ("3", 2, 2, "no-fit")
    assert row["expected_us"]["p50"] <= row["expected_us"]["p90"] and row["sentence"]
    lines = command("eta", "2", "--home", kant.home).out.splitlines()
    assert lines[0].startswith("2: P50 20") and lines[1].startswith(
        "number 1 of 2 waiting jobs; not enough free capacity"
    )
    assert "Expected starts" in command("eta", "--home", kant.home).out
    assert "expected a job that waits" in command("eta", "1", "--home", kant.home).refusal()
    assert "expected the id of a job, got '77'" in command("eta", "77", "--home", kant.home).refusal()
    array = kant.client.post("/v1/jobs", asked(kant.home, "true", gpus=8, array=[0, 1]))["jobs"]
    assert eventually(lambda: kant.phase(array[1]) == "waiting")
    group = array[0].partition("_")[0]
    assert [row["job"] for row in command("eta", group, "--home", kant.home, "--json").json()["jobs"]] == array
    command("cancel", group, "--home", kant.home)
    why = command("why", "3", "--home", kant.home).out
    assert "2 of 2 in its queue" in why and "P50 in " in why


async def test_the_desk_has_bounds() -> None:
    slow = (sys.executable, "-c", "import time; time.sleep(60)")
    nodes = Question(nodes=("1",))
    desk = WhatIfDesk(at_once=1, longest=0.3, process=slow)
    first = asyncio.create_task(desk.ask("journal", 0, nodes, lambda: False))
    await asyncio.sleep(0)
    with pytest.raises(WhatIfBusyError, match="at most 1 questions at once"):
        await desk.ask("journal", 0, nodes, lambda: False)
    with pytest.raises(TooLongError, match=r"at most 0\.3 s"):
        await first
    assert await WhatIfDesk(process=slow).ask("journal", 0, nodes, lambda: True) == b""  # nobody waits for it
    broken = WhatIfDesk(process=(sys.executable, "-c", "raise MemoryError"))
    with pytest.raises(InputError, match="expected a simulation that fits in memory"):
        await broken.ask("journal", 0, nodes, lambda: False)
    with pytest.raises(InputError, match="the journal: expected a disk"):
        await broken.ask("", 0, nodes, lambda: False)
    assert desk.working == broken.working == 0


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, None),
        ({"memory.max": "max", "memory.current": "700", "memory.stat": "inactive_file 100\n"}, None),
        ({"memory.max": "2000", "memory.current": "700", "memory.stat": "anon 5\ninactive_file 100\n"}, 1400),
        ({"memory.max": "500", "memory.current": "700", "memory.stat": "inactive_file 100\n"}, 0),
        (
            {
                "memory/memory.limit_in_bytes": "2000",
                "memory/memory.usage_in_bytes": "700",
                "memory/memory.stat": "total_inactive_file 0\n",
            },
            1300,
        ),
    ],
)
def test_futures_take_half_of_what_a_container_has_left(
    tmp_path: Path, files: dict[str, str], left: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_left(tmp_path) == left
    assert most_memory(300, left) == (8 << 30 if left is None else 300 + left // 2)
