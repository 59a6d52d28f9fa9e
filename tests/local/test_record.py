"""The record of a live run over HTTP: whole, then what is new; and the history of a job, also from before a restart."""

from __future__ import annotations

import gzip
import json
import urllib.request
from pathlib import Path

import pytest
from tests.local.up import Up, eventually

from kant.service.callers import page_token
from kant.service.client import Refused


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
        with pytest.raises(Refused, match="the id of a job"):
            kant.client.get(kant.client.job("99", "history"))

        address = kant.client.get("/v1/whoami")["address"]
        headers = {"Accept-Encoding": "gzip", "Authorization": f"Bearer {page_token(tmp_path)}"}
        request = urllib.request.Request(f"http://{address}/v1/record", headers=headers)
        with urllib.request.urlopen(request) as found:
            assert found.headers["Content-Encoding"] == "gzip"
            assert json.loads(gzip.decompress(found.read()))["jobs"]["id"] == [first, second, "3"]
        kant.kill()
    with Up(tmp_path) as kant:
        again = kant.client.get("/v1/record", since=new["cursor"])
        assert again["complete"]
        assert again["jobs"]["id"] == [second]
        assert again["intervals"]["end"] == [-1, -1]
        past = kant.client.get(kant.client.job(first, "history"))
        assert not past["whole"]
        assert [each["what"] for each in past["entries"]] == ["asked", "started", "failed"]
        assert past["entries"][2]["sentence"] == "it is over: failed (exit code 3)"
        for job in (second, "3"):
            kant.client.post(kant.client.job(job, "cancel"))
        kant.over(second, "3")
