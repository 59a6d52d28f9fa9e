"""From `kant up` to a cluster: queues, jobs that wait, history and what was learned, on a real API server."""

from __future__ import annotations

import asyncio
import base64
import gzip
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.kube.api import Api
from tests.kube.control_plane import NAMESPACE, ControlPlane
from tests.kube.job_controller import JobController
from tests.kube.kubelet import FakeKubelet
from tests.kube.live import MANIFESTS, install
from tests.kube.objects import Object, make_node
from tests.kube.running import kant
from tests.kube.test_user_jobs import TEAM, Terminal, role
from tests.local.test_move import AMOUNTS, a_record, made_home, queue_configs

from kant.insight.calibration import CalibrationState, HorizonState, Quarter, horizon
from kant.kube.lead.calibration_store import LEARNED as LEARNED_MAP
from kant.kube.objects.views import Unstructured
from kant.kube.translate.queues import queue_config_of
from kant.kube.user.old_jobs import MOST_BYTES, history_objects
from kant.kube.user.queue_objects import class_of, priority_class, queue_objects
from kant.live.core import Core
from kant.live.journals import Journals
from kant.live.learned import SavedCalibration, digest
from kant.local.record import JobPhase, JobRecord
from kant.model.event import QueuesChanged
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.submission import Submission
from kant.model.tenant import Queue, QueueConfig, Quota
from kant.model.units import HOUR, SECOND
from kant.scheduler.profile import builtin_profile
from kant.service.export import QUEUES, STORE
from kant.service.export_kubernetes import KubernetesOptions, write_objects
from kant.service.store import JobStore, digest_of
from kant.service.waits_store import LEARNED
from kant.workload.tenants_file import parse_tenants

CONFIG = QueueConfig(
    (Queue("default", "lab"), Queue("lab"), Queue("vision", "lab", weight=2, quotas=(Quota(nominal=8000),)))
)
KNOWN = HorizonState({at: Quarter(at, [2000], [2000]) for at in range(5)}, 5, 4, 0)
AT = horizon(2 * HOUR)


def waiting(seq: int, phase: JobPhase = JobPhase.WAITING, array: int = -1, index: int = -1, **wish: Any) -> JobRecord:
    asked = Submission(
        command=("python", "t.py"), workdir="/home/ann", env={"A": "b", "SECRET": "x"}, name="train", **wish
    )
    name = f"{array}_{index}" if array >= 0 else str(seq)
    digest = digest_of(msgspec.json.encode(asked))
    return JobRecord(seq, name, asked, digest, "ann", 10**15 + seq, phase, array, index)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a machine with a past: 40 jobs that ran, and 7 that wait."""
    sweep = (0, 1)
    records = [a_record(seq, JobPhase.FINISHED) for seq in range(1, 41)]
    records += [
        waiting(41, gpus=2, queue="vision", time_s=3600.0, priority=7, retries=2),
        waiting(42, gpus=1),
        waiting(43, JobPhase.HELD, gpus=1),
        waiting(44, gpus=0.5),
    ]
    records[-3].after = ("41",)
    for index in sweep:
        records.append(waiting(45 + index, JobPhase.WAITING, 45, index, gpus=1))
        records[-1].submission = msgspec.structs.replace(records[-1].submission, array=sweep)
        records[-1].digest = digest_of(msgspec.json.encode(records[-1].submission))
    records.append(waiting(50, JobPhase.RUNNING, gpus=1))
    home = made_home(tmp_path / "home", records)
    journals = Journals(home / "journal")
    core = Core(ClusterSpec("c", (Node("n", 8),)), builtin_profile("kant"), journals.open())
    core.settled()
    core.happen(QueuesChanged(0, CONFIG))
    core.end()
    journals.close()
    store = JobStore(home / STORE)
    learned = SavedCalibration(digest(builtin_profile("kant")), 0, CalibrationState({AT: KNOWN}))
    store.keep(LEARNED, msgspec.json.encode(learned))
    store.close()
    return home


async def test_a_cluster_goes_on_with_what_a_machine_knew(
    plane: ControlPlane, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "export"
    outcome = verb(
        "export", str(folder), "--home", str(home), "--image", "img", "-n", TEAM, "--env", "A", "--json"
    ).json()
    made = outcome["kubernetes"]
    assert made["held"] == {"42": "it depends on job 41"} and list(made["left_out"]) == ["44"]
    assert "whole number of GPUs" in made["left_out"]["44"] and made["jobs"] == 4
    async with Api(plane) as api:
        await install(api)
        await api.namespace(TEAM)
        await api.namespace(NAMESPACE)
        await api.apply(role())
        await api.apply([one for one in yaml.safe_load_all(rbac()) if one["kind"] != "Namespace"])
        await api.create_all([make_node(f"n{i}") for i in range(2)])
        admin = ["--kubeconfig", str(plane.kubeconfig("admin"))]
        for expected in (made["objects"], 0):  # the second time they are there
            got = await asyncio.to_thread(verb, "import", str(folder), *admin, "--json")
            assert sum(got.json()["made"].values()) == expected
        terminal = Terminal(capsys, plane.kubeconfig("tenant"))
        async with FakeKubelet(api), JobController(api), kant(plane, user="kant") as driver:
            rows = await terminal.until(lambda rows: sorted(phases(rows)) == ["held", "held", "running", "running"])
            row = next(row for row in rows.values() if row["queue"] == "vision")
            assert (row["name"], row["phase"], row["gpus"], row["priority"]) == ("train", "running", 2, 7)
            assert driver.core is not None
            assert [queue.name for queue in driver.core.state.quota_usage.queue_config.queues] == [
                "default",
                "lab",
                "vision",
            ]
            assert driver.core.answers.calibration().corrections[AT].answers == 5
            like = Job("x", 0, (PodGroup(1, Demand(1)),), queue="default", user=TEAM, name="j1")
            assert driver.core.past.whole(like, 500) == SECOND - 1, "as its kind ran on the machine"
            past = await terminal.json("history", "--since", "1970-01-02", "--by", "user,queue")
            (old,) = past["rows"]
            assert (old["user"], old["jobs"], old["finished"]) == ("ann", 40, 40)
            assert old["gpu_s"] == pytest.approx(20 * (1 - 1e-6))
        pods = {pod["metadata"]["name"]: pod for pod in await api.list("pods", TEAM)}
        env = [{one["name"]: one.get("value") for one in container(pod)["env"]} for pod in pods.values()]
        assert all(each["A"] == "b" and "SECRET" not in each for each in env)


def phases(rows: dict[str, dict[str, Any]]) -> list[str]:
    return [row["phase"] for row in rows.values()]


def container(pod: Object) -> Any:
    return pod["spec"]["containers"][0]


def rbac() -> str:
    return (MANIFESTS / "rbac.yaml").read_text().replace("${namespace}", NAMESPACE)


@given(queue_configs())
def test_queues_are_as_objects_what_they_are(config: QueueConfig) -> None:
    ordered = QueueConfig(tuple(sorted(config.queues, key=lambda queue: queue.name)))
    loose = [msgspec.json.decode(msgspec.json.encode(one), type=Unstructured) for one in queue_objects(config)]
    found, wrong = queue_config_of(loose)
    assert found == ordered and not wrong
    assert all("nominal" in quota for one in queue_objects(config) for quota in one["spec"].get("quotas", ()))


@given(st.integers(1, 3), st.sampled_from((0, 1, 4_999, 5_001, 6_000)))
def test_no_part_of_a_history_is_too_large_and_none_is_lost(seed: int, count: int) -> None:
    draw = random.Random(seed)
    jobs = [{"id": str(at), "queue": draw.randbytes(20).hex()} for at in range(count)]
    made = history_objects("s", jobs, "team")
    found = []
    for one in made:
        packed = base64.b64decode(one["binaryData"]["jobs.jsonl.gz"])
        assert len(packed) <= MOST_BYTES and len(msgspec.json.encode(one)) < 256 << 10
        found += [msgspec.json.decode(line) for line in gzip.decompress(packed).splitlines()]
    assert found == jobs and len({one["metadata"]["name"] for one in made}) == len(made)


@given(st.integers(-(10**9), 10**9) | st.sampled_from((0, 1, -1)), AMOUNTS)
def test_a_priority_has_a_class_of_its_own(priority: int, other: int) -> None:
    assert priority_class(priority)["value"] == priority
    assert (class_of(priority) == class_of(other)) == (priority == other)
    assert bool(class_of(priority)) == bool(priority) and len(class_of(priority)) < 64


def test_the_learned_map_is_the_one_that_the_role_names() -> None:
    assert f"resourceNames: [{LEARNED_MAP}]" in rbac()


def test_an_export_with_queues_has_them_as_objects(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    assert verb("export", str(folder), "--home", str(home)).code == 0
    assert parse_tenants("queues", (folder / QUEUES).read_text()) == CONFIG
    write_objects(folder, KubernetesOptions("img"))
    items = msgspec.json.decode((folder / "kubernetes.json").read_bytes())["items"]
    assert [one["metadata"]["name"] for one in items if one["kind"] == "Queue"] == ["default", "lab", "vision"]
