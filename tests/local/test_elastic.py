"""Elastic jobs of this machine: a real process is shrunk, grown and ended, and reads what happens to it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import kant as verb
from tests.local.up import TEXT, Up, eventually

from kant.scheduler.profile import parse_profile

PROFILE = parse_profile(TEXT + "\n[elastic]\ngrow_s = 0\n", "kant, which grows at once")
CONTRACT = """
least_gpus = 2
tail = 0.5
[batch]
least = 32
most = 64
per_gpu = 8
[rate]
amplitude = 0.1
batch_power = 0.5
token_power = -0.25
"""
TRAIN = """
import json, sys, time
from kant.client.elastic import Elastic
elastic = Elastic()
tokens = elastic.tokens
while not elastic.is_over(tokens):
    if elastic.changed(tokens) and {deaf}:
        time.sleep(600)
    now = elastic.now
    print(json.dumps([tokens, now.gpus, now.batch, elastic.rate(tokens)]), flush=True)
    tokens += now.batch
    time.sleep(0.02)
elastic.changed(tokens)
"""


def train(kant: Up, deaf: bool = False, budget: int = 0, **wish: Any) -> str:
    """Submit the training through the command line, with a contract."""
    file, script = kant.home / "contract.toml", kant.home / f"train{deaf}.py"
    file.write_text(f"budget = {budget}{CONTRACT}")
    script.write_text(TRAIN.format(deaf=deaf))
    options = [word for name, value in wish.items() for word in (f"--{name}", str(value))]
    options += ["--gpus", "8", "--contract", str(file), "--grace", "1s", "--home", str(kant.home)]
    return verb("submit", *options, "--", sys.executable, str(script)).out.strip()


def asked(kant: Up, job: str) -> dict[str, Any]:
    """What `kant why` says."""
    found: dict[str, Any] = kant.client.get(kant.client.job(job, "why"))
    return found


def steps(kant: Up, job: str) -> list[list[Any]]:
    return [json.loads(line) for line in kant.log(job).splitlines()]


def sizes(kant: Up, job: str) -> list[int]:
    """The numbers of GPUs with which it made steps, in turn."""
    found = [step[1] for step in steps(kant, job)]
    return [size for at, size in enumerate(found) if at == 0 or found[at - 1] != size]


def told(kant: Up, job: str, attempt: int = 1) -> list[dict[str, Any]]:
    file = kant.home / "runs" / job / str(attempt) / "elastic.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def heard(kant: Up, job: str) -> dict[str, Any]:
    """What the first run of a job has said last."""
    file = kant.home / "runs" / job / "1" / "elastic.jsonl.heard"
    return json.loads(file.read_text()) if file.exists() else {}


def test_a_training_is_shrunk_grown_and_ended_and_a_killed_kant_forgets_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Up(home, profile=PROFILE) as kant:
        job, began = train(kant), time.monotonic()
        assert eventually(lambda: heard(kant, job).get("tokens", 0) > 0)
        short = kant.submit("sleep 600", gpus=4, priority=9, grace_s=0.1)
        assert eventually(lambda: sizes(kant, job) == [8, 4] and kant.phase(short) == "running")
        taken = kant.job(short)["place"]
        assert asked(kant, job)["sentence"] == "4 GPUs, a batch of 32 samples: 1 x 8 on each GPU"
        kant.kill()
    with Up(home, profile=PROFILE) as kant:
        assert kant.phase(job) == "running" and sizes(kant, job) == [8, 4]
        start, half = told(kant, job)
        assert (start["event"], half["event"], half["batch"]) == ("start", "resize", 32)
        assert half["rate"] == pytest.approx(0.1 * 32**0.5 * half["tokens"] ** -0.25)
        assert not _gpus(half["devices"]) & {f"{node}:{gpu}" for node, gpus in taken.items() for gpu in _span(gpus)}
        kant.client.post(kant.client.job(short, "cancel"))
        assert eventually(lambda: sizes(kant, job) == [8, 4, 8])
        time.sleep(max(0.0, began + 6.0 - time.monotonic()))  # the tail takes as long: kant starts meanwhile
        kant.client.post(kant.client.job(job, "cancel"))
        assert asked(kant, job)["sentence"].startswith("it is in its tail until")
        kant.kill()
    with Up(home, profile=PROFILE) as kant:
        urgent = kant.submit("true", gpus=8, priority=99, preemptible=False)
        assert eventually(lambda: asked(kant, urgent)["answer"] is not None)
        facts = [each["sentence"] for each in asked(kant, urgent)["answer"]["facts"]]
        assert any(each.startswith(f"job {job} is in the tail of its training") for each in facts)
        assert kant.over(job, urgent) == ["finished", "finished"]
        assert kant.job(job)["job"]["attempt"] == 1, "nobody has stopped it"
        tail, last = told(kant, job)[-1], steps(kant, job)[-1]
        assert tail["event"] == "tail" and tail["tail_until"] == tail["tail_from"] / 0.5
        assert tail["tail_until"] - last[2] <= last[0] < tail["tail_until"] and last[3] < tail["rate"] / 2


def test_who_keeps_its_gpus_is_stopped_and_a_limit_begins_the_tail(tmp_path: Path) -> None:
    with Up(tmp_path / "home", profile=PROFILE) as kant:
        deaf = train(kant, deaf=True)
        assert eventually(lambda: sizes(kant, deaf) == [8])
        other = kant.submit("sleep 600", gpus=4, priority=9, grace_s=0.1)
        time.sleep(0.5)
        assert kant.phase(other) == "waiting", "the deaf one still has its GPUs"
        assert eventually(lambda: kant.phase(other) == "running")
        assert eventually(lambda: kant.job(deaf)["job"]["attempt"] == 2)
        for job in (deaf, other):
            kant.client.post(kant.client.job(job, "cancel"))
        kant.client.post(kant.client.job(deaf, "cancel"))  # again: at once
        assert kant.over(deaf) == ["cancelled"]
        timed = train(kant, time="4s")
        assert kant.over(timed) == ["finished"]
        assert told(kant, timed)[-1]["event"] == "tail"
        whole = train(kant, budget=640)
        assert kant.over(whole) == ["finished"] and told(kant, whole)[-1]["tail_from"] >= 320


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("least = 32|least = 63", "the contract, batch: expected a batch from 63 to 64 that 5 GPUs share evenly"),
        ("least_gpus = 2|least_gpus = 0", "least_gpus: expected a whole number from 1 to 100,000, got 0"),
        ("least_gpus = 2|least_gpus = 9", "the contract, least_gpus: expected a job with least_gpus (9) GPUs or more"),
        ("tail = 0.5|tail = 0.9", "tail: expected a number from 0 to 0.5, got 0.9"),
        ("least = 32|lest = 32", "only the keys least, most, per_gpu"),
    ],
)
def test_a_bad_contract_is_refused_in_one_sentence(kant: Up, change: str, sentence: str) -> None:
    file = kant.home / "bad.toml"
    file.write_text(CONTRACT.replace(*change.split("|")))
    said = verb("submit", "--gpus", "8", "--contract", file, "--home", kant.home, "--", "true").refusal()
    assert sentence in said
    assert kant.client.get("/v1/jobs")["jobs"] == []


def _span(names: str) -> list[int]:
    return [gpu for part in names.split(",") for gpu in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)]


def _gpus(devices: str) -> set[str]:
    """NODE:GPU of each device of an event."""
    parts = (part.partition(":") for part in devices.split(";"))
    return {f"{node}:{gpu}" for node, _, gpus in parts for gpu in gpus.split(",")}
