"""Rules among pods and exact amounts as documented: pods are recounted for every question."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from kant.model.job import LEVELS, Job
from kant.model.node import Node
from kant.model.rules import PodAffinity, PodRules

NO_RULES = PodRules()


@dataclass
class NodeCounts:
    """The pods on one node by class, and their use of its exact amounts and of those of the cluster."""

    classes: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)

    def add(self, rules: PodRules, pods: int) -> None:
        """Add this many pods with these rules, or remove them if negative."""
        for name in set(rules.classes):
            self.classes[name] = self.classes.get(name, 0) + pods
        for name, amount in rules.amounts:
            self.taken[name] = self.taken.get(name, 0) + pods * amount
        for name, each, _ in rules.shared:
            self.shared[name] = self.shared.get(name, 0) + pods * each

    def copy(self) -> NodeCounts:
        return NodeCounts(dict(self.classes), dict(self.taken), dict(self.shared))


def rules_of(job: Job, group: int) -> PodRules:
    """The rules of one group of a job."""
    if not job.rules:
        return NO_RULES
    return job.rules[group] if len(job.rules) > 1 else job.rules[0]


def without_preferences(job: Job) -> Job:
    """A job without its rules on pods and domains that may still come: what is impossible without them remains so."""
    return replace(
        job,
        rules=tuple(
            PodRules(
                own.classes,
                tuple(one for one in own.anti_affinity if one.topology == "node"),
                amounts=own.amounts,
                shared=own.shared,
            )
            for own in job.rules
        ),
    )


Where = tuple[Node, NodeCounts]


def domain_of(node: Node, topology: str, said: Mapping[str, Mapping[str, str]]) -> object:
    """The domain of a node; None if it is in none."""
    if topology == "node":
        return node.name
    if topology in LEVELS:
        own = (node.superspine, node.spine, node.leaf, node.hbd or f"alone {node.name}")
        return own[: len(LEVELS) - LEVELS.index(topology)]
    return said.get(topology, {}).get(node.name)


def members_near(there: Sequence[Where], at: int, near: PodAffinity, said: Mapping[str, Mapping[str, str]]) -> int:
    """The number of pods of the affinity's class in the domain of the node `there[at]`."""
    own = domain_of(there[at][0], near.topology, said)
    return sum(
        counts.classes.get(near.pod_class, 0)
        for node, counts in there
        if own is not None and domain_of(node, near.topology, said) == own
    )


def allows(
    there: Sequence[Where],
    at: int,
    rules: PodRules,
    said: Mapping[str, Mapping[str, str]],
    coming: Collection[PodAffinity] = (),
) -> bool:
    """Whether the rules and the pods already there admit one more pod to the node `there[at]`.

    Affinities in `coming` count as satisfied.
    """
    node, counts = there[at]
    has = dict(node.amounts)
    if any(counts.taken.get(name, 0) + amount > has.get(name, 0) for name, amount in rules.amounts if amount):
        return False
    if any(sum(own.shared.get(name, 0) for _, own in there) + each > most for name, each, most in rules.shared):
        return False

    def in_domains(name: str, topology: str) -> dict[object, int]:
        found: dict[object, int] = {}
        for other, own in there:
            domain = domain_of(other, topology, said)
            if domain is not None:
                found[domain] = found.get(domain, 0) + own.classes.get(name, 0)
        return found

    for anti in rules.anti_affinity:
        own = domain_of(node, anti.topology, said)
        if own is not None and in_domains(anti.pod_class, anti.topology)[own] > anti.most:
            return False
    none_yet = not any(any(in_domains(near.pod_class, near.topology).values()) for near in rules.affinity)
    for near in rules.affinity:
        own = domain_of(node, near.topology, said)
        first = near.pod_class in rules.classes and none_yet
        if own is None or not (members_near(there, at, near, said) or first or near in coming):
            return False
    for even in rules.spread:
        pods, own = in_domains(even.pod_class, even.topology), domain_of(node, even.topology, said)
        fewest = min(pods.values(), default=0) if len(pods) >= even.min_domains else 0
        if own is None or pods[own] + (even.pod_class in rules.classes) - fewest > even.max_skew:
            return False
    return True
