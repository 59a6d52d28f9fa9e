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
