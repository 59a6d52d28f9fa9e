"""The objects that the ops of scheduler_perf create: nodes, pods, volumes, claims and devices.

As the Go code of scheduler_perf makes them (executor.go, dra.go, and test/utils/runners.go of Kubernetes).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks.scheduler_perf_files import Object, Workload, rendered

BASE_SIZE = {"pods": "110", "cpu": "4", "memory": "32Gi"}
BASE_ASKS = {"cpu": "100m", "memory": "500Mi"}
HOSTNAME = "kubernetes.io/hostname"
MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"


def nodes(op: Object, number: int, first: int, workload: Workload) -> Iterator[tuple[Object, Object | None]]:
    """Each node of a createNodes op, and its CSINode; `number` is the op's, `first` counts the nodes that are there."""
    count, path = int(op["count"]), op.get("nodeTemplatePath")
    for i in range(count):
        node = rendered(workload.template(path), i, count) if path else _base_node(number)
        meta = node["metadata"]
        name = meta.setdefault("name", f"{meta.pop('generateName', '')}{first + i:05}")
        labels = meta.setdefault("labels", {})
        labels[HOSTNAME] = name
        if given := op.get("labelNodePrepareStrategy"):
            labels[given["labelKey"]] = given["labelValues"][i % len(given["labelValues"])]
        if given := op.get("uniqueNodeLabelStrategy"):
            labels[given["labelKey"]] = name
        size = node["status"].setdefault("allocatable", dict(node["status"]["capacity"]))
        storage = op.get("nodeAllocatableStrategy")
        size.update(storage["nodeAllocatable"] if storage else {})
        yield node, _csi_node(name, storage) if storage else None


def _base_node(number: int) -> Object:
    ready = {"type": "Ready", "status": "True"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"generateName": f"node-{number}-"},
        "status": {"capacity": dict(BASE_SIZE), "phase": "Running", "conditions": [ready]},
    }


def _csi_node(name: str, given: Object) -> Object:
    drivers = [
        {"name": driver, "nodeID": name, "topologyKeys": [], "allocatable": amount}
        for driver, amount in given["csiNodeAllocatable"].items()
    ]
    notes = {MIGRATED: ",".join(given.get("migratedPlugins", ()))}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name, "annotations": notes},
        "spec": {"drivers": drivers},
    }


def pods(op: Object, count: int, scheduler: str, workload: Workload) -> Iterator[bytes]:
    """The pods of a createPods op, as JSON."""
    path = op.get("podTemplatePath")
    text = workload.template(path) if path else ""
    varies = "{{" in text
    pod = _of(rendered(text, 0, count) if path else _base_pod(), scheduler)
    for i in range(count):
        made = _of(rendered(text, i, count), scheduler) if varies else pod
        if op.get("persistentVolumeClaimTemplatePath"):
            made = copy.deepcopy(made)
            made["spec"]["volumes"] = [{"name": "vol", "persistentVolumeClaim": {"claimName": f"pvc-{i}"}}]
        yield msgspec.json.encode(made)


def _of(pod: Object, scheduler: str) -> Object:
    """The pod, asking for a scheduler. Go reads fields whatever their case, and the templates make use of it.

    It may be preempted: kube-scheduler takes that of any pod, Kant only of those that have a controller or say so.
    """
    pod["spec"]["schedulerName"] = scheduler
    pod["metadata"].setdefault("annotations", {})["scheduling.kant.dev/preemptible"] = "true"
    spreading = pod["spec"].get("topologySpreadConstraints", [])
    for constraint in spreading:
        for key in list(constraint):
            constraint[key[0].lower() + key[1:]] = constraint.pop(key)
    return pod


def for_scheduler(thing: Object, scheduler: str) -> Object:
    """Any object of a template; a pod asks for a scheduler."""
    return _of(thing, scheduler) if thing["kind"] == "Pod" else thing


def _base_pod() -> Object:
    asks = {"limits": BASE_ASKS, "requests": BASE_ASKS}
    pause = {
        "name": "pause",
        "image": "registry.k8s.io/pause:3.10.1",
        "ports": [{"containerPort": 80}],
        "resources": asks,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "pod-"}, "spec": {"containers": [pause]}}


def volumes(op: Object, namespace: str, count: int, workload: Workload) -> Iterator[tuple[Object, Object]]:
    """A PersistentVolume and its claim for each pod, bound to each other."""
    volume = rendered(workload.template(op["persistentVolumeTemplatePath"]))
    claim = rendered(workload.template(op["persistentVolumeClaimTemplatePath"]))
    for i in range(count):
        one, its = copy.deepcopy(volume), copy.deepcopy(claim)
        name = f"{namespace}-vol-{i}"
        one["metadata"] = {**one.get("metadata", {}), "name": name}
        its["metadata"] = {**its.get("metadata", {}), "name": f"pvc-{i}"}
        if "csi" in one["spec"]:
            one["spec"]["csi"]["volumeHandle"] = name
        elif "awsElasticBlockStore" in one["spec"]:
            one["spec"]["awsElasticBlockStore"]["volumeID"] = f"vol-{i}"
        one["spec"]["claimRef"] = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": namespace,
            "name": f"pvc-{i}",
        }
        its["spec"]["volumeName"] = name
        yield one, its


def resource_slice(driver: str, node: str, devices: int) -> Object:
    """What a DRA driver publishes for a node: so many equal devices."""

    def device(i: int) -> Object:
        attributes: dict[str, Any] = {
            "model": {"string": "A100"},
            "family": {"string": "GPU"},
            "driverVersion": {"version": "1.2.3"},
            "dra.example.com/numa": {"int": i},
        }
        return {"name": f"instance-{i}", "attributes": attributes, "capacity": {"memory": {"value": "1Gi"}}}

    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": node},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 0, "resourceSliceCount": 1},
            "devices": [device(i) for i in range(devices)],
        },
    }
