"""Pods of a Kubernetes cluster as jobs: gangs, retries, what still runs, and audit logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import kant

from kant.model.errors import InputError
from kant.model.units import HOUR, MINUTE, SECOND
from kant.workload.kubernetes_pods import read_pods
from kant.workload.read import read_workload

Put = Callable[[str, str | bytes], Path]


def clock(seconds: int) -> str:
    return f"2026-10-05T{8 + seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"


def pod(
    name: str, created: int, bound: int | None = None, ended: int | None = None, gpus: int = 8, **more: Any
) -> dict[str, Any]:
    """A pod as the API shows it; times in seconds after eight o'clock."""
    resources = {"limits": {"nvidia.com/gpu": str(gpus)} if gpus else {}, "requests": {"cpu": "1500m", "memory": "2Gi"}}
    status: dict[str, Any] = {"phase": "Pending"}
    if bound is not None:
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": clock(bound)}
        status = {"phase": "Running", "conditions": [condition]}
    if ended is not None:
        status |= {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"finishedAt": clock(ended)}}}]}
    meta = {"name": name, "namespace": "vision", "uid": name, "creationTimestamp": clock(created)}
    meta["labels"] = {"job-name": more.pop("job")} if "job" in more else {}
    return {
        "kind": "Pod",
        "metadata": meta | more.pop("meta", {}),
        "spec": {"containers": [{"name": "main", "resources": resources}], **more},
        "status": status,
    }


PODS = [
    pod("train-0", 0, 600, 4200, job="train"),
    pod("train-1", 5, 660, 4260, job="train"),
    pod("train-launcher", 1, 30, 4270, gpus=0, job="train"),
    pod("train-2", 5000, 5000, 5100, job="train", activeDeadlineSeconds=3600),  # a retry
    pod("notebook", 60, 60, gpus=1, meta={"namespace": "speech"}),  # still runs
    pod("waits", 7000),
    pod("web", 100, 100, 200, gpus=0),
    pod("exporter", 100, 100, 200, meta={"ownerReferences": [{"kind": "DaemonSet"}]}),
]


def listed(pods: list[dict[str, Any]]) -> str:
    return json.dumps({"kind": "List", "items": pods}, indent=2)


def audited(pods: list[dict[str, Any]]) -> str:
    """The log of a cluster in which each pod was created, and later seen as it is."""
    lines = []
    for found in pods:
        early = {**found, "status": {"phase": "Pending"}}
        for verb, seen in (("create", early), ("patch", found)):
            event = {"kind": "Event", "apiVersion": "audit.k8s.io/v1", "verb": verb, "responseObject": seen}
            lines.append(json.dumps(event))
    lines.append(json.dumps({"kind": "Event", "apiVersion": "audit.k8s.io/v1", "responseObject": {"kind": "Status"}}))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("write", [listed, audited, lambda pods: "\n".join(json.dumps(pod) for pod in pods)])
def test_pods_become_gangs(put: Put, write: Callable[[list[dict[str, Any]]], str]) -> None:
    jobs = read_pods(put("pods.json", write(PODS)))
    assert jobs.ids == ["vision/train", "speech/notebook", "vision/train.2"]
    assert jobs.submit.tolist() == [0, MINUTE, 5000 * SECOND]
    assert jobs.runtime.tolist() == [(4270 - 660) * SECOND, (7000 - 60) * SECOND, 100 * SECOND]
    assert jobs.pods.tolist() == [2, 1, 1] and jobs.gpus.tolist() == [8, 1, 8]
    assert jobs.cpu.tolist() == [1500] * 3 and jobs.memory.tolist() == [2048] * 3
    assert jobs.limit.tolist() == [-1, -1, HOUR]
    assert [jobs.queues[code] for code in jobs.queue] == ["vision", "speech", "vision"]
    assert sorted(jobs.notes) == [
        "1 jobs left out: they have no GPU",
        "1 jobs left out: they never ran",
        "1 jobs still run: they count with their run time so far",
    ]


def test_a_deleted_pod_ends_when_it_is_deleted(put: Put) -> None:
    found = pod("train", 0, 10)
    delete = {
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "verb": "delete",
        "stageTimestamp": "2026-10-05T08:05:00.500000Z", "responseObject": found,
    }  # fmt: skip
    jobs = read_pods(put("audit.log", audited([found]) + json.dumps(delete) + "\n"))
    assert jobs.runtime.tolist() == [290 * SECOND + SECOND // 2]


def test_unequal_pods_keep_only_their_total(put: Put) -> None:
    pods = [pod("a", 0, 1, 9, gpus=8, job="j"), pod("b", 0, 1, 9, gpus=4, job="j")]
    jobs = read_pods(put("pods.json", listed(pods)))
    assert jobs.pods.tolist() == [0] and jobs.gpus.tolist() == [12]


def test_a_label_can_be_the_queue_and_pods_without_gpus_kept(put: Put) -> None:
    pods = [pod("a", 0, 1, 9, meta={"labels": {"team": "blue"}}), pod("b", 1, 1, 9, gpus=0)]
    jobs = read_pods(put("pods.json", listed(pods)), queue_label="team", cpu_jobs=True)
    assert jobs.queues == ("blue", "vision") and jobs.gpus.tolist() == [8, 0]


def test_the_command_writes_a_trace_that_simulates(put: Put, tmp_path: Path) -> None:
    target = tmp_path / "jobs.parquet"
    said = kant("trace", "from-kubernetes", put("pods.json", listed(PODS)), target, "--anonymous")
    assert said.code == 0 and "3 jobs written" in said.out
    jobs = read_workload(target)
    assert jobs.queues == ("queue-1", "queue-2") and jobs.ids == ["0", "1", "2"]
    assert kant("simulate", target, "--cluster", "2x8", "--json").json()["completed"] == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "whole JSON"),
        ("[]", "whole JSON"),
        ('{"kind": "Pod", }\n', "line 1"),
        ("{}\n", "at least one job"),
        (listed([pod("late", 0)]), "they never ran"),
        (listed([{**pod("odd", 0, 1, 2), "spec": {}}]), "pod vision/odd"),
        (listed([pod("odd", 0, 1, 2)]).replace('"8"', '"many"'), "pod vision/odd"),
        (listed([pod("odd", 0, 1, 2)]).replace('"8"', '"8e99"'), "at most"),
        (listed([pod("odd", 0, 1, 2)]).replace("2026-10-05T08:00:01Z", "soon"), "pod vision/odd"),
    ],
)
def test_what_is_no_record_of_pods_is_refused(put: Put, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_pods(put("pods.json", text))
