"""Names of the labels, annotations and gates that Kant writes to API objects, and reads from them."""

from __future__ import annotations

from urllib.parse import quote

OWN = "scheduling.kant.dev"
"""The group of Kant's own kinds, labels and annotations."""

GATE = f"{OWN}/quota"
"""The scheduling gate of a pod that waits for its quota."""

TEST_GATE = f"{OWN}/test-only"
"""The scheduling gate of a pod that only asks when it would start."""

TEST_PODS = f"{OWN}/test-pods"
"""The annotation of a pod with TEST_GATE: the number of pods of the gang about which the pod asks."""

TEST_ONLY = "TestOnly"
"""The reason of the condition PodScheduled that has the answer for a pod with TEST_GATE."""

MOVABLE = f"{OWN}/movable"
"""The annotation of a pod that may be evicted so that other pods fit better; its controller re-creates the pod."""

LEADER = f"{OWN}/leader"
"""The annotation with the token of the leader that sent a binding or an eviction, or wrote a claim."""

HOLD = f"{OWN}/hold"
"""The annotation of a pod that Kant must not start yet; its value is `true`. Removing it lets the pod start."""

PRIORITY = f"{OWN}/priority"
"""The annotation of a waiting pod with a whole number: a priority that replaces the one of the pod's PriorityClass."""
ALLOCATED = f"{OWN}/allocated"
"""The annotation of a device claim that Kant has allocated. Kant withdraws the allocation when it is unused."""

TAINT_RULES = "devicetaintrules"
"""The plural of the kind DeviceTaintRule."""

SCHEDULER = f"{OWN}/scheduler-name"
"""The annotation of the Lease with the schedulerName of the pods that its holder schedules."""

NAME_CLAIM = "scheduler-name-"
"""Prefix, before the schedulerName, of the name of the Lease in kube-system by which an installation claims it."""

PROFILE = f"{OWN}/profile"
"""The annotation of the Lease with the text of the profile of its holder."""

VERSION = f"{OWN}/version"
"""The annotation of the Lease with the version of its holder."""

QUEUES_KNOWN = f"{OWN}/queues"
"""The annotation of the Lease that says whether Queues have been seen (`reconcile/queue_presence.py`)."""

TICKET = f"{OWN}/ticket"
"""The annotation of the Lease with a secret: users who may read the Lease sign questions to its holder with it."""


def lease_path(namespace: str) -> str:
    """Return the API path of the Lease of Kant in a namespace."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases/kant"
