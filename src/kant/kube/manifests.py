"""The Kubernetes objects that run Kant, as YAML: files of this package with a few values filled in.

The Helm chart (deploy/helm/kant) is generated from the same files by deploy/helm/make.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

from kant import __version__
from kant.model.errors import InputError
from kant.scheduler.profile import builtin_texts, parse_profile

SCHEDULER_NAME = "kant"
IMAGE = f"kant:{__version__}"
NAMESPACE = "kant-system"

_PLACE = re.compile(r"\$\{(\w+)\}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[\w.\-/:@]{1,500}", re.ASCII)

PARTS = (
    "rbac", "scheduler-name", "config", "fencing", "orders", "gates", "hami", "deployment", "network-policy",
    "service-monitor", "prometheus-rule", "dashboard",
)  # fmt: skip
"""The names of the manifests in order, without the namespace and the definitions of Kant's kinds (`crd-*.yaml`)."""

RESOURCES = """\
requests:
  cpu: "1"
  memory: 1Gi
limits:
  memory: 2Gi
"""

OPTIONAL = {
    "gates": "gates",
    "hami": "hami",
    "network-policy": "networkPolicy",
    "service-monitor": "serviceMonitor",
    "prometheus-rule": "prometheusRule",
    "dashboard": "dashboard",
}
"""The manifests that are left out by default, each with the Helm value that includes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSettings:
    """What may differ between clusters. `profile` is the text of a profile in TOML; "": the profile `kant`."""

    namespace: str = NAMESPACE
    image: str = IMAGE
    replicas: int = 2
    profile: str = ""
    gates: bool = False
    hami: bool = False
    network_policy: bool = False
    service_monitor: bool = False
    prometheus_rule: bool = False
    dashboard: bool = False

    def check(self) -> None:
        """Raise InputError for what the API server, or Kant at its start, would reject."""
        if not _NAME.fullmatch(self.namespace):
            raise InputError("--namespace", "the name of a namespace, such as kant-system", self.namespace)
        if not _IMAGE.fullmatch(self.image):
            raise InputError("--image", "the name of a container image", self.image)
        if not 1 <= self.replicas <= 9:
            raise InputError("--replicas", "1 to 9 replicas, of which one leads", self.replicas)
        parse_profile(self.profile or builtin_texts()["kant"], "--profile")


def part(name: str) -> str:
    """Return the text of the manifest `name`, with its placeholders."""
    return (files("kant.kube") / "manifests" / f"{name}.yaml").read_text(encoding="utf-8")


def definitions() -> list[str]:
    """Return the names of the manifests that define Kant's own kinds."""
    entries = (entry.name for entry in (files("kant.kube") / "manifests").iterdir())
    return sorted(name.removesuffix(".yaml") for name in entries if name.startswith("crd-"))


DEPLOYMENT = {
    "priority_class": "system-cluster-critical",
    "placement": "",
    "extra_args": "",
    "journal_mib": "3072",
    "journal_size": "4Gi",
    "resources": " " * 12 + RESOURCES.strip().replace("\n", "\n" + " " * 12),
}
"""The chart's values for the Deployment. The limit of the journals (MiB) is below the size of their volume."""


def fill(text: str, values: dict[str, str]) -> str:
    """Return `text` with its placeholders filled. A placeholder without a value is a bug (KeyError)."""
    return _PLACE.sub(lambda match: values[match[1]], text)


def indented(text: str, by: int = 4) -> str:
    """Return `text` as the body of a YAML block scalar."""
    return "\n".join(" " * by + line if line else "" for line in text.strip("\n").split("\n"))


def render(settings: ManifestSettings) -> str:
    """Return all objects as YAML documents, for `kubectl apply -f -`. Raises InputError for bad settings."""
    settings.check()
    values = {
        "namespace": settings.namespace,
        "scheduler_name": SCHEDULER_NAME,
        "image": settings.image,
        "replicas": str(settings.replicas),
        "profile": indented(settings.profile or builtin_texts()["kant"]),
        **DEPLOYMENT,
    }
    wanted = {name: getattr(settings, name.replace("-", "_")) for name in OPTIONAL}
    names = ["namespace", *definitions(), *(name for name in PARTS if wanted.get(name, True))]
    return "---\n".join(fill(part(name), values) for name in names)
