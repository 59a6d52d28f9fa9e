"""Names that Kant writes on objects of the API, and that it reads there."""

from __future__ import annotations

OWN = "scheduling.kant.dev"
"""The group of Kant's own kinds, labels and annotations."""

GATE = f"{OWN}/quota"
"""The scheduling gate of a pod that waits for its quota."""

TEST_GATE = f"{OWN}/test-only"
"""The scheduling gate of a pod that only asks when it would start."""

TEST_PODS = f"{OWN}/test-pods"
"""The annotation of such a pod that asks for a gang of so many like it."""

TOLD = "TestOnly"
"""The reason of the condition PodScheduled that has the answer."""

MOVABLE = f"{OWN}/movable"
"""The annotation of a pod that may be evicted so that others fit better; whoever owns it makes it anew."""

LEADER = f"{OWN}/leader"
"""The annotation that carries the token of the leader who sent a binding or an eviction, or wrote a claim."""

HOLD = f"{OWN}/hold"
"""The annotation of a pod that is not to start before somebody takes it away: `true`."""

PRIORITY = f"{OWN}/priority"
"""The annotation of a pod that waits with another priority than that of its PriorityClass: a whole number."""
ALLOCATED = f"{OWN}/allocated"
"""The annotation of a claim to devices that Kant has allocated, and takes back when nobody uses it."""

SCHEDULER = f"{OWN}/scheduler-name"
"""The annotation of the Lease that has the schedulerName of the pods which its holder schedules."""

NAME_CLAIM = "scheduler-name-"
"""What the name of the Lease in kube-system begins with by which a Kant claims a schedulerName; that name follows."""

PROFILE = f"{OWN}/profile"
"""The annotation of the Lease that has the text of the profile with which its holder decides."""

VERSION = f"{OWN}/version"
"""The annotation of the Lease that has the version of its holder."""

QUEUES_KNOWN = f"{OWN}/queues"
"""The annotation of the Lease that says whether its holder has seen Queues (`reconcile/queue_presence.py`)."""

TICKET = f"{OWN}/ticket"
"""The annotation of the Lease with which whoever may read it asks the holder questions."""
