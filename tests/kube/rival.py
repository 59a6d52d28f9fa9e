"""The real kube-scheduler, of the same version as the API server, beside Kant or against it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import yaml
from tests.kube.control_plane import GANG_GATES, ControlPlane

NAME = "kube-scheduler"
QPS = 50_000
"""Its own limit on requests, out of the way."""


class KubeScheduler:
    """`with KubeScheduler(plane):` it binds pods of schedulerName default-scheduler, or of `names`."""

    def __init__(
        self, plane: ControlPlane, names: Sequence[str] = ("default-scheduler",), *, native_gangs: bool = False
    ) -> None:
        assert plane.binaries.scheduler is not None, "expected a kube-scheduler beside the kube-apiserver"
        assert not native_gangs or set(GANG_GATES) <= set(plane.gates), "the API server has no gangs"
        self.plane = plane
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(plane.kubeconfig("scheduler")), "qps": QPS, "burst": QPS},
            "profiles": [{"schedulerName": name} for name in names],
        }
        self._config = plane.folder / f"{NAME}-{os.urandom(4).hex()}.yaml"
        self._config.write_text(yaml.safe_dump(config))
        gates = ",".join(f"{gate}=true" for gate in GANG_GATES)
        self._flags = [f"--feature-gates={gates}"] if native_gangs else []

    def start(self) -> KubeScheduler:
        words = self.plane.binaries.scheduler or ()
        self.plane.run(NAME, [*words, f"--config={self._config}", "--secure-port=0", *self._flags])
        return self

    def stop(self) -> None:
        self.plane.end(NAME)

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.stop()
