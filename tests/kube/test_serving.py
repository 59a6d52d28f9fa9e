"""What a replica tells the outside: metrics and their page, probes, logs."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.kube.serve.metrics import MOST_QUEUES, KubeTelemetry
from kant.kube.serve.server import ProbeChecks, ProbeServer, address, application, unfresh
from kant.live import logs
from kant.metrics.live import Occupancy
from kant.metrics.recorder import I_ALLOCATED, I_CAPACITY, Recorder
from kant.model.errors import InputError
from kant.model.units import SECOND
from kant.testing import make_cluster, make_profile
from kant.testing.builders import make_job, make_queue
from kant.testing.harness import Harness

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes-metrics.md"


def busy() -> tuple[Harness, KubeTelemetry]:
    """Two nodes of 8 GPUs: one job holds 4, one waits for quota, one fits nowhere."""
    harness = Harness(make_cluster(8, 8), make_profile())
    telemetry = KubeTelemetry()
    telemetry.follow(harness.state)
    telemetry.stand = lambda: (harness.state, harness.now)
    harness.set_queues(make_queue("team", 8, borrowing=0), make_queue("other", 16))
    harness.submit(make_job("runs", gpus=4, queue="team"), make_job("held", gpus=8, queue="team"))
    harness.submit(make_job("large", gpus=8, pods=2, queue="other"))
    telemetry.cycle(0.01, harness.cycle())
    telemetry.whole(harness.state, harness.state.rows["runs"], 2 * SECOND)
    telemetry.cycle(0.01, harness.cycle(10 * SECOND))
    return harness, telemetry


def values(telemetry: KubeTelemetry) -> dict[str, float]:
    """The samples of a scrape by name and labels as they are written."""
    lines = (line for line in telemetry.text().decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_a_scrape_says_how_the_cluster_stands() -> None:
    _, telemetry = busy()
    for step in (
        lambda: telemetry.bound(0.003),
        lambda: telemetry.bind_failed(409),
        lambda: telemetry.flag("kant_leader", True),
    ):
        step()
    telemetry.evicted("reclaim", 3)
    telemetry.partial(0.2)
    telemetry.dropped()
    telemetry.staleness["pods"] = lambda: 7.5
    told = values(telemetry)
    pool = next(re.search(r'pool="([^"]*)"', name)[1] for name in told if name.startswith("kant_gar"))  # type: ignore[index]
    assert told[f'kant_gar{{pool="{pool}"}}'] == told[f'kant_sor{{pool="{pool}"}}'] == 0.25
    assert told[f'kant_gfr{{pool="{pool}"}}'] == 0.5
    assert told[f'kant_allocated_gpu_seconds_total{{pool="{pool}"}}'] == 40
    assert told[f'kant_largest_startable_gang_gpus{{pool="{pool}"}}'] == 8
    assert told['kant_queue_used_gpus{model="",queue="team"}'] == 4
    assert told['kant_pending_jobs{queue="team",reason="over-quota"}'] == 1
    assert sum(value for name, value in told.items() if name.startswith("kant_pending_jobs{")) == 2
    assert told['scheduler_pending_pods{queue="gated"}'] == 1
    assert told['scheduler_pending_pods{queue="unschedulable"}'] == 2
    assert told['scheduler_schedule_attempts_total{profile="kant",result="scheduled"}'] == 1
    assert told['kant_job_wait_seconds_sum{gpu_bucket="2-8"}'] == 2
    assert told['kant_jtted_ratio_sum{gpu_bucket="2-8"}'] == 1
    assert told["kant_cycles_total"] == 2 and told["kant_leader"] == 1
    assert told['kant_bind_errors_total{code="409"}'] == 1 and told['kant_evictions_total{why="reclaim"}'] == 3
    assert told['kant_watch_staleness_seconds{resource="pods"}'] == 7.5


def test_the_page_names_what_is_exposed_and_nothing_else() -> None:
    _, telemetry = busy()
    found = {}
    for family in telemetry.registry.collect():
        labels = {label for sample in family.samples for label in sample.labels if label != "le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if not name.startswith("process_"):
            found[name] = (family.type, labels)
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|([^|]*)\| .+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert {name: kind for name, (kind, _) in found.items()} == {name: kind for name, (kind, _) in listed.items()}
    for name, (_, labels) in found.items():
        assert labels <= listed[name][1], name
        assert not re.search(r"_(ms|milliseconds|millis|minutes)(_|$)", name)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 16), st.booleans()), max_size=30))
def test_occupancy_adds_up_as_the_recorder_does(steps: list[tuple[int, int, bool]]) -> None:
    harness = Harness(make_cluster(8, 8), make_profile(), check=False)
    recorder, occupancy = Recorder(harness.state), Occupancy(harness.state)
    for number, (span, gpus, observe) in enumerate(steps):
        if gpus:
            harness.submit(make_job(f"j{number}", gpus=1, pods=gpus), runtime=10**11)
        harness.cycle(harness.now + span)
        if observe:
            recorder.observe(harness.now)
            occupancy.observe(harness.now)
    both = zip(recorder.integral(I_ALLOCATED), recorder.integral(I_CAPACITY), strict=True)
    assert np.allclose(occupancy.gpu_seconds(), [(a / 1000, b / 1000) for a, b in both], rtol=1e-12)


def test_counters_go_on_when_the_state_is_built_anew() -> None:
    _, telemetry = busy()
    before = telemetry.gpu_seconds()
    telemetry.follow(Harness(make_cluster(8, 8, 8)).state)
    assert telemetry.gpu_seconds() == before
    assert sum(before.values()) > 0


def test_nobody_can_make_up_labels_without_end() -> None:
    harness, telemetry = Harness(make_cluster(1, 1), make_profile(), check=False), KubeTelemetry()
    telemetry.stand = lambda: (harness.state, 0)
    harness.submit(*(make_job(f"j{i}", queue=f"made-up-{i}") for i in range(MOST_QUEUES + 40)))
    labels = {re.search(r'queue="([^"]*)"', name)[1] for name in values(telemetry) if "kant_pending_jobs" in name}  # type: ignore[index]
    assert len(labels) == MOST_QUEUES + 1 and "(other)" in labels


# --- probes ------------------------------------------------------------------------------------------------------


async def test_the_probes_say_what_is_wrong() -> None:
    ages = {"pods": 0.0, "nodes": 0.0}
    synced = [False]
    health = ProbeChecks(unready=lambda: unfresh(synced[0], ages), dump=lambda: {"leader": "a", "jobs": 3})
    async with TestClient(TestServer(application(KubeTelemetry(), health))) as client:

        async def ask(path: str) -> tuple[int, str]:
            async with client.get(path) as reply:
                return reply.status, await reply.text()

        assert await ask("/healthz") == (200, "ok\n")
        assert await ask("/readyz") == (503, "not ready: it has not listed the cluster yet\n")
        synced[0] = True
        assert await ask("/readyz") == (200, "ok\n")
        ages["nodes"] = 61.0
        assert await ask("/readyz") == (503, "not ready: the watch of nodes has been silent for 61 s\n")
        assert "kant_leader" in (await ask("/metrics"))[1]
        assert json.loads((await ask("/debug/state"))[1]) == {"leader": "a", "jobs": 3}


async def test_the_dump_is_for_the_pod_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kant.kube.serve.server.is_loopback", lambda request: False)
    async with (
        TestClient(TestServer(application(KubeTelemetry(), ProbeChecks()))) as client,
        client.get("/debug/state") as r,
    ):
        assert r.status == 403


async def test_a_server_opens_its_port_or_says_why_not() -> None:
    async with ProbeServer("127.0.0.1:0", KubeTelemetry(), ProbeChecks()) as server, aiohttp.ClientSession() as http:
        async with http.get(f"http://127.0.0.1:{server.port}/healthz") as reply:
            assert reply.status == 200
        with pytest.raises(InputError, match="an address that is free"):
            await ProbeServer(f"127.0.0.1:{server.port}", KubeTelemetry(), ProbeChecks()).__aenter__()


def test_addresses() -> None:
    assert address(":8080") == ("0.0.0.0", 8080)
    assert address("[::1]:1") == ("::1", 1)
    for bad in ("8080", "a:b", "host:70000", "::1:80", ""):
        with pytest.raises(InputError, match="--listen"):
            address(bad)


# --- logs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", logs.FORMATS)
def test_a_decision_is_one_line(format: str) -> None:
    harness, out = Harness(make_cluster(8, 8)), io.StringIO()
    logger = logs.set_up(format, stream=out)
    harness.submit(make_job("ml/a", gpus=8), make_job('odd "name\n', gpus=8, pods=2), make_job("never", gpus=9))
    logs.log_decisions(logger, harness.cycle(), [node.name for node in harness.state.spec.nodes])
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    if format == "json":
        told = {line["job"]: line for line in map(json.loads, lines)}
        assert told["ml/a"]["decision"] == "start" and len(told["ml/a"]["nodes"]) == 1
        assert told["never"]["decision"] == "reject" and told["never"]["reason"] == "never-fits"
        assert told['odd "name\n']["reason"] == "no-fit"
        assert all({"time", "level", "message"} <= line.keys() for line in told.values())
    else:
        assert any("job=ml/a decision=start" in line for line in lines)
        assert any(r'job="odd \"name\n"' in line for line in lines)


def test_levels_and_formats_that_are_none_are_refused() -> None:
    for options in ({"format": "xml"}, {"level": "loud"}):
        with pytest.raises(InputError, match="--log-"):
            logs.set_up(**options)
    out = io.StringIO()
    logs.log_event(logs.set_up(level="warning", stream=out), "quiet", job="a")
    assert not out.getvalue()
