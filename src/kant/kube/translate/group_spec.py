"""The properties of a group: how many pods must run together, in which queue, in which topology domain, and so on.

`group_objects` reads the objects of groups; it is imported with the first object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kant.kube.objects.views import Pod

STANDS_IN = "to be made: "
"""Prefix of the uids of stand-ins. No uid of a real pod begins with it."""


class Part(NamedTuple):
    """Pods of a group that are created from one template. `after` names the parts that must be ready, or (True)
    complete, before these pods are created. `scheduler` is the schedulerName of the template.
    """

    name: str
    pods: int
    template: Mapping[str, Any]
    after: tuple[tuple[str, bool], ...] = ()

    @property
    def scheduler(self) -> str:
        return str((self.template.get("spec") or {}).get("schedulerName") or "")


class GroupSpec(NamedTuple):
    """`least` pods run together (0: each pod runs alone). "" and None mean that a property is not specified.

    `required` and `preferred` are topology levels, by name or node label: one domain of the level must, or should, hold
    all pods. `created` is the creation time as in the API. `tasks` has the minimum number of pods of each task among
    `least`. `node_pool` is the pool that its pods must name (KAI). `together`: its pods are evicted only all at once.
    `preempts`: False if they must not preempt others. Pods of the `later` parts are created only once others exist.
    `gangs` has the names of the parts of each gang, if there are several gangs; then the other fields are unused.
    `alone`: each pod runs alone, even if a label states a number of pods. `parent` names the composite group that
    contains the group. For a composite group itself, `least` is the number of groups that start together. `node_wait`
    is how long its pods wait for a new node before they preempt others.
    """

    least: int
    queue: str = ""
    priority: int | None = None
    priority_class: str = ""
    required: str = ""
    preferred: str = ""
    preemptible: bool | None = None
    created: str = ""
    tasks: tuple[tuple[str, int], ...] = ()
    node_pool: str = ""
    together: bool = False
    preempts: bool = True
    later: tuple[Part, ...] = ()
    gangs: tuple[tuple[str, ...], ...] = ()
    alone: bool = False
    parent: str = ""
    node_wait: str = ""


def is_stand_in(pod: Pod) -> bool:
    """Whether the pod is a stand-in for a pod that is not yet created. The API server does not know it."""
    return pod.metadata.uid.startswith(STANDS_IN)
