"""Dependencies beyond the end of a job: its start, the same index of an array, one of several."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.local.up import Up, eventually

from kant.model.errors import InputError


def test_a_job_starts_so_long_after_the_start_of_another(tmp_path: Path) -> None:
    with Up(tmp_path / "home") as kant:
        first = kant.submit("sleep 600", hold=True)
        after = kant.submit("true", after_started=[f"{first}+2"])
        assert eventually(lambda: kant.phase(after) == "blocked")
        assert f"job {first}, which has not started" in kant.client.get(kant.client.job(after, "why"))["sentence"]
        kant.kill()
    with Up(tmp_path / "home") as kant:  # what it waits for is in the store
        assert kant.phase(after) == "blocked"
        kant.client.post(kant.client.job(first, "release"))
        assert kant.over(after) == ["finished"] and kant.phase(first) == "running"
        started = [kant.job(job)["job"]["started"] for job in (first, after)]
        assert started[1] - started[0] >= 2_000_000
        assert kant.over(kant.submit("true", after_started=[first])) == ["finished"], "it has started already"
        never = kant.submit("true", hold=True)
        late = kant.submit("true", after_started=[never])
        kant.client.post(kant.client.job(never, "cancel"))
        assert kant.over(late) == ["finished"], "as in Slurm: started or cancelled"
        with pytest.raises(InputError, match="after_started: expected the id of a job, also with seconds"):
            kant.submit("true", after_started=[f"{first}+soon"])
        kant.client.post(kant.client.job(first, "cancel"))


def test_one_of_several_is_enough_and_when_none_can_be_it_is_cancelled(tmp_path: Path) -> None:
    with Up(tmp_path / "home") as kant:
        bad, held = kant.submit("false", hold=True), kant.submit("sleep 600", hold=True)
        either = kant.submit("true", after_ok=[bad, held], after_one=True)
        neither = kant.submit("true", after_ok=[bad], after_not_ok=[bad], after_one=True)
        both = kant.submit("true", after_ok=[bad], after_one=True)
        kant.client.post(kant.client.job(bad, "release"))
        assert kant.over(neither, both) == ["finished", "cancelled"]
        assert kant.phase(either) == "blocked", "the other may still end well"
        kant.client.post(kant.client.job(held, "cancel"))
        assert kant.over(either) == ["cancelled"]


def test_a_job_of_nodes_has_them_apart_and_an_exclusive_one_a_whole_node(tmp_path: Path) -> None:
    with Up(tmp_path / "home", "2x4") as kant:
        job = kant.submit("env", gpus=4, nodes=2, slurm=True)
        whole = kant.submit("env", exclusive=True, slurm=True)
        assert kant.over(job, whole) == ["finished"] * 2
        found = dict(line.split("=", 1) for line in kant.log(job).splitlines() if line.startswith(("SLURM", "KANT_S")))
        slots = [slot.split(",") for slot in found["KANT_SLOTS"].split(";")]
        assert [len(slot) for slot in slots] == [2, 2] and found["SLURM_JOB_NODELIST"] == "127.0.0.1,127.0.0.2"
        assert "SLURM_GPUS_ON_NODE=4" in kant.log(whole)
        for fields, sentence in (
            ({"gpus": 3, "nodes": 2}, "gpus: expected a multiple of the 2 nodes"),
            ({"nodes": 4, "tasks": 3}, "tasks: expected at least 4, one for each node"),
        ):
            with pytest.raises(InputError, match=sentence):
                kant.submit("true", **fields)
