"""Claims, volumes and storage classes as tests write them: there is no volume controller, so bound ones are made so."""

from __future__ import annotations

from typing import Any

from tests.kube.objects import Object

COMPLETED = {"pv.kubernetes.io/bind-completed": "yes"}
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


def storage_class(name: str, provisioner: str = "test.kant.dev/disk", **more: Any) -> Object:
    """One whose claims are bound when a pod first uses them."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    } | more


def volume(name: str, claim: str, key: str = "", *values: str, mode: str = "ReadWriteOnce") -> Object:
    """A volume of a claim; with `key` on nodes with one of these values of that label alone."""
    spec: Object = {
        "capacity": {"storage": "1Gi"},
        "accessModes": [mode],
        "hostPath": {"path": "/nowhere"},
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": claim},
    }
    if key:
        terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def claim(name: str, volume: str = "", storage_class: str = "", mode: str = "ReadWriteOnce") -> Object:
    """A claim; with `volume` one that is bound."""
    spec: Object = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
    spec["storageClassName"] = storage_class
    if volume:
        spec["volumeName"] = volume
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default", "annotations": dict(COMPLETED) if volume else {}},
        "spec": spec,
    }


def uses(*claims: str) -> Object:
    """The volumes of a pod's spec."""
    return {"volumes": [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]}


STORAGE = "storage.k8s.io/v1"


def driver(name: str = "test.kant.dev/disk") -> Object:
    """A driver that says how much storage it has."""
    spec = {"storageCapacity": True}
    return {"apiVersion": STORAGE, "kind": "CSIDriver", "metadata": {"name": name}, "spec": spec}


def csi_node(node: str, volumes: int, driver: str) -> Object:
    """A node that may attach so many volumes of a driver."""
    drivers = [{"name": driver, "nodeID": node, "allocatable": {"count": volumes}}]
    return {"apiVersion": STORAGE, "kind": "CSINode", "metadata": {"name": node}, "spec": {"drivers": drivers}}


def capacity(name: str, storage_class: str, amount: str, **labels: str) -> Object:
    """So much storage of a class for the nodes with these labels; `zone` is that of the topology."""
    return {
        "apiVersion": STORAGE,
        "kind": "CSIStorageCapacity",
        "metadata": {"name": name, "namespace": "default"},
        "storageClassName": storage_class,
        "nodeTopology": {"matchLabels": {f"topology.kubernetes.io/{key}": value for key, value in labels.items()}},
        "capacity": amount,
    }


def csi_volume(name: str, claim: str, driver: str) -> Object:
    """A volume of a driver, for a claim."""
    made = volume(name, claim)
    del made["spec"]["hostPath"]
    made["spec"]["csi"] = {"driver": driver, "volumeHandle": f"handle-{name}"}
    return made


def attachment(volume: str, node: str, driver: str) -> Object:
    """A volume that is attached."""
    spec = {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}}
    return {"apiVersion": STORAGE, "kind": "VolumeAttachment", "metadata": {"name": f"at-{volume}"}, "spec": spec}
