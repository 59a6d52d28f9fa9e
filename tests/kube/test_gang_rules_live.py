"""Rules among the pods of one gang, on a real API server: kept when all of it starts, or it waits and says which."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import yaml
from tests.kube.api import Api
from tests.kube.audit import Auditor
from tests.kube.job_controller import JobController
from tests.kube.kubelet import FakeKubelet
from tests.kube.live import bound, install_kind, kind, profile, says, until, where
from tests.kube.objects import GANG, GANG_MIN, Object, make_gang, make_node, make_pod, make_priority_class
from tests.kube.running import Kant

ZONE, RACK, HOST = "topology.kubernetes.io/zone", "example.com/rack", "kubernetes.io/hostname"

MPIJOB = """
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: allreduce}
spec:
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec:
          schedulerName: kant
          containers: [{name: mpi, image: mpi, resources: {requests: {cpu: "1"}}}]
    Worker:
      replicas: 3
      template:
        spec:
          schedulerName: kant
          affinity:
            podAntiAffinity:
              requiredDuringSchedulingIgnoredDuringExecution:
                - topologyKey: kubernetes.io/hostname
                  labelSelector:
                    matchLabels: {training.kubeflow.org/job-name: allreduce, training.kubeflow.org/replica-type: worker}
          containers: [{name: mpi, image: mpi, resources: {limits: {nvidia.com/gpu: 2}}}]
"""

SPREAD_JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  completions: 6
  parallelism: 6
  completionMode: Indexed
  template:
    metadata: {labels: {app: train, run: first}, annotations: {scheduling.kant.dev/min-available: "6"}}
    spec:
      schedulerName: kant
      restartPolicy: Never
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: topology.kubernetes.io/zone
          whenUnsatisfiable: DoNotSchedule
          minDomains: 3
          nodeTaintsPolicy: Honor
          labelSelector: {matchLabels: {app: train}}
          matchLabelKeys: [run]
      containers: [{name: main, image: train, resources: {limits: {nvidia.com/gpu: 1}}}]
"""


def pods_of(job: Object) -> list[Object]:
    """The pods that the MPI operator makes of an MPIJob, as far as a scheduler sees them."""
    name, made = job["metadata"]["name"], []
    for role, replicas in job["spec"]["mpiReplicaSpecs"].items():
        for index in range(replicas["replicas"]):
            pod = copy.deepcopy(replicas["template"])
            labels = {"training.kubeflow.org/job-name": name, "training.kubeflow.org/replica-type": role.lower()}
            total = sum(one["replicas"] for one in job["spec"]["mpiReplicaSpecs"].values())
            labels |= {GANG: name, GANG_MIN: str(total)}
            pod |= {"apiVersion": "v1", "kind": "Pod"}
            pod["metadata"] = {"name": f"{name}-{role.lower()}-{index}", "namespace": "default", "labels": labels}
            made.append(pod)
    return made


def affine(kind: str, key: str, **more: Any) -> Object:
    """Required affinity or anti-affinity to pods with the label app: g."""
    term = {"labelSelector": {"matchLabels": {"app": "g"}}, "topologyKey": key} | more
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


async def busy(api: Api, **gpus: int) -> None:
    """GPUs of nodes that somebody else's pods hold."""
    for node, number in gpus.items():
        await api.create(make_pod(f"on-{node}", number, scheduler="somebody", node=node))


async def test_workers_of_an_mpijob_that_keep_apart_have_a_host_each_and_its_launcher_one_of_theirs(
    api: Api, kant: Kant
) -> None:
    await install_kind(api, kind("kubeflow.org", "v2beta1", "MPIJob", "mpijobs"))
    await api.create_all([make_node(f"n{number}") for number in range(3)])
    await busy(api, n2=7)
    async with Auditor(api) as auditor, kant():
        job = yaml.safe_load(MPIJOB)
        await api.apply([job | {"metadata": {"name": "allreduce", "namespace": "default"}}])
        await api.create_all(pods_of(job))
        await until(api, lambda pods: says(pods, "allreduce-worker-2", "podAntiAffinity by kubernetes.io/hostname"))
        assert not any(name.startswith("allreduce") for name in bound(await api.list("pods")))
        await api.delete("/api/v1/namespaces/default/pods/on-n2", grace_s=0)
        found = where(await until(api, lambda pods: len(bound(pods)) == 4))
        assert {found[f"allreduce-worker-{index}"] for index in range(3)} == {"n0", "n1", "n2"}
        (await auditor.report()).assert_kept(all_bound=True)


async def test_a_job_that_spreads_over_zones_starts_whole_and_even_or_waits(api: Api, kant: Kant) -> None:
    zones = {"n0": "a", "n1": "a", "n2": "b", "n3": "c", "tainted": "d"}
    taint = {"key": "dedicated", "value": "others", "effect": "NoSchedule"}
    await api.create_all([
        make_node(name, labels={ZONE: zone}, taints=[taint] if name == "tainted" else [])
        for name, zone in zones.items()
    ])  # fmt: skip
    await busy(api, n3=7)
    async with FakeKubelet(api), JobController(api), kant():
        manifest = yaml.safe_load(SPREAD_JOB)
        await api.apply([manifest | {"metadata": {"name": "train", "namespace": "default"}}])
        await until(api, lambda pods: sum("topologySpreadConstraints by" in str(pod) for pod in pods) == 6)
        assert bound(await api.list("pods")) == ["on-n3"], "zone c has room for one, and a and b for any number"
        await api.delete("/api/v1/namespaces/default/pods/on-n3", grace_s=0)
        found = where(await until(api, lambda pods: len(bound(pods)) == 6))
        assert Counter(zones[node] for node in found.values()) == {"a": 2, "b": 2, "c": 2}


async def test_a_gang_near_itself_by_any_label_is_in_one_domain_and_apart_by_another(api: Api, kant: Kant) -> None:
    """The rack is no level of the fabric here. One rack has the fuller nodes and room for all, the other has not."""
    racks = {"n0": "r1", "n1": "r1", "n2": "r2", "n3": "r2", "n4": "r2"}
    await api.create_all([make_node(name, labels={RACK: rack}) for name, rack in racks.items()])
    await busy(api, n0=7, n1=4, n2=6, n3=6, n4=6)
    async with Auditor(api) as auditor, kant():
        near = affine("podAffinity", RACK, matchLabelKeys=["part"])
        await api.create_all(make_gang("one", 6, labels={"app": "g", "part": "one"}, affinity=near))
        found = where(await until(api, lambda pods: sum(name.startswith("one") for name in bound(pods)) == 6))
        assert {racks[node] for name, node in found.items() if name.startswith("one")} == {"r2"}
        apart = affine("podAntiAffinity", RACK, mismatchLabelKeys=["part"])
        labels = {"app": "g", "part": "two"}
        await api.create_all(make_gang("two", 2, labels=labels, affinity=apart))
        found = where(await until(api, lambda pods: sum(name.startswith("two") for name in bound(pods)) == 2))
        assert {racks[node] for name, node in found.items() if name.startswith("two")} == {"r1"}
        (await auditor.report()).assert_kept(all_bound=True)


async def test_nobody_is_evicted_for_a_gang_whose_rules_that_would_not_help(api: Api, kant: Kant) -> None:
    racks = {"n0": "r1", "n1": "r1", "n2": "r2", "n3": "r3"}
    await api.create_all([make_priority_class("high", 1000)])
    await api.create_all([make_node(name, labels={RACK: rack}) for name, rack in racks.items()])
    await busy(api, n3=8)
    ruled = profile("[preemption]\npriority = true\nmin_run_s = 0\n")
    async with FakeKubelet(api), kant(profile=ruled) as driver:
        stays = {"scheduling.kant.dev/preemptible": "true"}
        await api.create_all([make_pod(f"low-{index}", 8, annotations=stays) for index in range(3)])
        await until(api, lambda pods: len(bound(pods)) == 4)
        apart = {"app": "g"}, affine("podAntiAffinity", RACK)
        high = {"priority_class": "high"}
        await api.create_all(make_gang("three", 3, 8, labels=apart[0], affinity=apart[1], **high))
        await until(api, lambda pods: says(pods, "three-0", "podAntiAffinity by example.com/rack"))
        assert driver.counts.evicted == 0, "there are two racks, whoever goes"
        there = {node: name for name, node in where(await api.list("pods")).items()}
        for name in ("three-0", "three-1", "three-2", there["n1"]):
            await api.delete(f"/api/v1/namespaces/default/pods/{name}", grace_s=0)
        await busy(api, n1=8)
        await api.create_all(make_gang("two", 2, 8, labels=apart[0], affinity=apart[1], **high))
        found = where(await until(api, lambda pods: {"two-0", "two-1"} <= {*bound(pods)}))
        assert {racks[found[name]] for name in ("two-0", "two-1")} == {"r1", "r2"}
        assert driver.counts.evicted == 2
