"""The record of a live run over HTTP: whole, then what is new; and the history of a job, also from before a restart."""

from __future__ import annotations

import gzip
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.local.up import Up, eventually

from kant.model.status import JobStatus
from kant.model.units import SECOND
from kant.service import recorded
from kant.service.callers import page_token
from kant.service.client import RefusedError


def test_the_record_and_the_history_of_a_job(tmp_path: Path) -> None:
    with Up(tmp_path, listen="127.0.0.1:0") as kant:
        first = kant.submit("exit 3", gpus=2, name="short")
        assert kant.over(first) == ["failed"]
        whole = kant.client.get("/v1/record")
        assert whole["complete"]
        assert (whole["kind"], whole["cluster"]["gpus"], whole["queues"]) == ("local", [4, 4], ["default"])
        assert (whole["jobs"]["id"], whole["jobs"]["name"], whole["jobs"]["milli"]) == ([first], ["short"], [2000])
        assert whole["intervals"]["end"][0] > whole["intervals"]["start"][0]
        second = kant.submit("sleep 600", gpus=8)
        assert eventually(lambda: kant.phase(second) == "running")
        new = kant.client.get("/v1/record", since=whole["cursor"])
        assert not new["complete"]
        assert (new["cluster"], new["jobs"]["id"], new["intervals"]["end"]) == (None, [second], [-1, -1])
        assert new["summary"]["now"]["gar"] == 1.0

        kant.submit("sleep 600", gpus=1)
        kant.client.post(kant.client.job("3", "hold"))
        assert eventually(lambda: kant.phase("3") == "held")
        told = [each["what"] for each in kant.client.get(kant.client.job("3", "history"))["entries"]]
        assert told in (
            ["asked", "submitted", "hold", "cancelled", "hold"],
            ["asked", "submitted", "cancelled", "hold"],
        )
        with pytest.raises(RefusedError, match="the id of a job"):
            kant.client.get(kant.client.job("99", "history"))

        address = kant.client.get("/v1/whoami")["address"]
        headers = {"Accept-Encoding": "gzip", "Authorization": f"Bearer {page_token(tmp_path)}"}
        request = urllib.request.Request(f"http://{address}/v1/record", headers=headers)
        with urllib.request.urlopen(request) as found:
            assert found.headers["Content-Encoding"] == "gzip"
            assert json.loads(gzip.decompress(found.read()))["jobs"]["id"] == [first, second, "3"]
        kant.kill()
    for journal in (tmp_path / "journal").glob("*.jsonl"):
        journal.write_text("nothing that Kant has written\n")
    with Up(tmp_path) as kant:
        again = kant.client.get("/v1/record", since=new["cursor"])
        assert again["complete"]
        assert again["jobs"]["id"] == [second]
        assert again["intervals"]["end"] == [-1, -1]
        past = kant.client.get(kant.client.job(first, "history"))
        assert not past["whole"]
        assert [each["what"] for each in past["entries"]] == ["asked", "started", "failed"]
        assert past["entries"][2]["sentence"] == "it has ended: failed (exit code 3)"
        for job in (second, "3"):
            kant.client.post(kant.client.job(job, "cancel"))
        kant.over(second, "3")


def never() -> None:
    """The past is not read."""
    recorded.SLICE, recorded.PAUSE = 0.0, 3600.0


def test_nobody_waits_for_the_past(tmp_path: Path) -> None:
    """However long it takes to read: jobs run, and the record has who lives."""
    with Up(tmp_path) as kant:
        first, second = kant.submit("exit 0"), kant.submit("sleep 600")
        kant.over(first)
    with Up(tmp_path, prepare=never) as kant:
        third = kant.submit("exit 0")
        assert kant.over(third) == ["finished"]
        assert kant.client.get("/v1/record")["jobs"]["id"] == [second, third]
        kant.client.post(kant.client.job(second, "cancel"))
        kant.over(second)


def test_the_past_comes_back_after_restarts(tmp_path: Path) -> None:
    """Killed twice: what ran on is one job with one interval, and of what ended meanwhile the store knows when."""

    def record() -> dict[str, Any]:
        found: dict[str, Any] = kant.client.get("/v1/record")
        return found

    def pieces(said: dict[str, Any], job: str) -> list[tuple[int, ...]]:
        """Of a job: node, GPUs, and from when to when since 1970."""
        row, zero = said["jobs"]["id"].index(job), said["zero_us"]
        return [
            (node, mask, start + zero, end + zero if end >= 0 else -1)
            for of, node, mask, start, end in zip(
                *(said["intervals"][key] for key in ("job", "node", "mask_low", "start", "end")), strict=True
            )
            if of == row
        ]

    with Up(tmp_path) as kant:
        first = kant.submit("exit 0", gpus=2)
        kant.over(first)
        wait = "while [ ! -e end ]; do sleep 0.05; done; exit 3"
        runs, ends, held = (kant.submit(script, gpus=1) for script in ("sleep 600", wait, "sleep 600"))
        assert eventually(lambda: [kant.phase(job) for job in (runs, ends, held)] == ["running"] * 3)
        was = record()
        kant.kill()
    for _ in range(2):
        with Up(tmp_path) as kant:
            assert eventually(lambda: first in record()["jobs"]["id"])
            assert pieces(record(), runs) == pieces(was, runs)
            assert kant.client.get(kant.client.job(first, "history"))["whole"]
            kant.kill()
    (tmp_path / "end").touch()
    assert eventually((tmp_path / "runs" / ends / "1" / "exit").exists)
    with Up(tmp_path) as kant:
        kant.over(ends)
        assert eventually(lambda: first in record()["jobs"]["id"])
        said = record()
        assert sorted(said["jobs"]["id"]) == sorted((first, runs, ends, held))
        assert said["jobs"]["row"] == [0, 1, 2, 3]
        assert len(said["starts"]) == 4 and said["starts"] == sorted(said["starts"])
        assert pieces(said, first) == pieces(was, first)
        assert pieces(said, runs) == pieces(was, runs)
        ((*place, end),) = pieces(said, ends)
        assert place == list(pieces(was, ends)[0][:3])
        assert abs(end - kant.job(ends)["job"]["ended"]) < 10 * SECOND
        assert said["jobs"]["status"][said["jobs"]["id"].index(ends)] == JobStatus.REJECTED
        times = said["series"]["time"]
        assert times == sorted(times) and max(said["series"]["allocated"]) == 3000
        kant.client.post(kant.client.job(runs, "cancel"))
        kant.client.post(kant.client.job(held, "cancel"))
        kant.over(runs, held)
