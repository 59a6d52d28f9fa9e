"""Asks: the properties of a job that define its shape, read from the job and checked."""

from __future__ import annotations

from typing import NamedTuple

from kant.model.errors import StateError
from kant.model.job import LEVELS, Job, Level, PodGroup
from kant.model.mig import PROFILES
from kant.model.preference import Preferences
from kant.model.rules import HOST, Limit, PodAffinity, PodAntiAffinity, PodRules
from kant.model.training import Training
from kant.model.units import GPU


class Affinity(NamedTuple):
    """The placement of a job relative to others: its affinity group ("": none), and two indices in LEVELS, -1 for none.

    `apart`: a domain of this level should hold only one pod of the group. `near`: the job prefers a domain of this
    level that already hosts the group.
    """

    group: str
    apart: int = -1
    apart_required: bool = False
    near: int = -1


class Ask(NamedTuple):
    """The requests that define a shape. `pools` is a bit mask; `level`, `required` and `affinity` are as in `Shape`.

    `workload` is the first of the profile's workloads that matches the job, counted from 1; 0 for none. `preempts`:
    whether other jobs may be stopped for the job. `training`: the model that the job trains, if declared. `roles` has
    the pools of each group if the groups differ; `pools` is then their union. `reservation`: the reservation whose GPUs
    the job uses. `node_sets` has the node set of each group, "" for any node; empty if no group has one. `numbers` has
    each group's index in the job; empty: the first groups of the job, in order. `rules` and `preferences` have an entry
    for each group; empty if no group has any. `node_wait`: the wait for a node before the job preempts others, µs.
    """

    groups: tuple[PodGroup, ...]
    pools: int
    level: int = -1
    required: bool = False
    affinity: Affinity | None = None
    workload: int = 0
    preempts: bool = True
    training: Training | None = None
    roles: tuple[int, ...] = ()
    reservation: str = ""
    node_sets: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    rules: tuple[PodRules, ...] = ()
    preferences: tuple[Preferences, ...] = ()
    node_wait: int = 0

    @property
    def gpu_roles(self) -> tuple[int, ...]:
        """The pools of each group that asks for GPUs or parts of them, if the groups differ."""
        return tuple(pools for group, pools in zip(self.groups, self.roles, strict=False) if group.demand.charged_milli)


MAX_PODS = 10_000_000
MAX_AMOUNT = 1 << 53
"""The most CPU or memory of one pod: more than any node has, and small enough that sums fit 64 bits."""

MAX_EXACT = 1 << 53
"""The largest exact amount of a pod or a node: enough for the bytes of a disk, and sums still fit 64 bits."""


def is_sensible(group: PodGroup) -> bool:
    demand = group.demand
    return (
        1 <= group.count <= MAX_PODS
        and 0 <= group.floor <= group.count
        and 0 <= demand.gpus <= MAX_PODS
        and 1 <= demand.milli <= (MAX_AMOUNT if demand.mig and not demand.gpus else GPU)
        and 0 <= demand.cpu <= MAX_AMOUNT
        and 0 <= demand.memory <= MAX_AMOUNT
        and (not demand.mig or not demand.gpus or (demand.mig in PROFILES and demand.gpus == 1))
        and 0 <= group.segment <= MAX_PODS
    )


def affinity_of(job: Job) -> Affinity | None:
    for level in (job.apart, job.near):
        if level not in ("", *LEVELS):
            raise StateError(f"job {job.id!r} asks for the level {level!r}; expected one of {', '.join(LEVELS)}")
    if job.near and not job.affinity_group:
        raise StateError(f"job {job.id!r} prefers to be near an affinity group; expected the name of one")
    if job.apart and any(group.within for group in job.groups):
        raise StateError(f"job {job.id!r} asks for its pods apart and in segments; expected only one of these")
    apart = job.apart if job.pods > 1 or job.affinity_group else ""
    if not job.affinity_group and not apart:
        return None
    return Affinity(
        job.affinity_group,
        LEVELS.index(apart) if apart else -1,
        bool(apart) and job.apart_required,
        LEVELS.index(job.near) if job.near else -1,
    )


def node_sets_of(job: Job) -> tuple[str, ...]:
    """Return `Ask.node_sets` of a job."""
    own = tuple(role.node_set or job.node_set for role in job.roles) or (job.node_set,) * len(job.groups)
    return own if any(own) else ()


NO_RULES = PodRules()


def rules_of(job: Job) -> tuple[PodRules, ...]:
    """Return `Ask.rules` of a job, sorted. Raises StateError for an empty or repeated name or a number out of range."""
    if len(job.rules) not in (1, len(job.groups)):
        raise StateError(f"job {job.id!r} has {len(job.rules)} rules for {len(job.groups)} groups; expected as many")
    found = tuple(_in_order(job, rules) for rules in job.rules)
    if len(found) < len(job.groups):
        found *= len(job.groups)
    return found if any(rules != NO_RULES for rules in found) else ()


def _in_order(job: Job, rules: PodRules) -> PodRules:
    limits: tuple[Limit, ...] = (*rules.anti_affinity, *rules.affinity, *rules.spread)
    named = [(one.pod_class, one.topology) for one in limits]
    amounts: dict[str, int] = {}
    for name, amount in rules.amounts:
        amounts[name] = amounts.get(name, 0) + amount
    fewest: dict[tuple[str, str], int] = {}
    for one in rules.anti_affinity:
        fewest[one.pod_class, one.topology] = min(one.most, fewest.get((one.pod_class, one.topology), one.most))
    sensible = (
        all(rules.classes)
        and all(one and topology for one, topology in named)
        and all(0 <= one.most <= MAX_PODS for one in rules.anti_affinity)
        and all(1 <= one.max_skew <= MAX_PODS and 1 <= one.min_domains <= MAX_PODS for one in rules.spread)
        and len({(one.pod_class, one.topology) for one in rules.spread}) == len(rules.spread)
        and all(name and 0 <= amount < MAX_EXACT for name, amount in amounts.items())
        and all(name and 0 < each < MAX_EXACT and 0 <= most < MAX_EXACT for name, each, most in rules.shared)
        and len({name for name, _, _ in rules.shared}) == len(rules.shared)
    )
    if not sensible:
        raise StateError(f"job {job.id!r} has rules that cannot be counted: {rules}")
    return PodRules(
        tuple(sorted(set(rules.classes))),
        tuple(PodAntiAffinity(*one, most) for one, most in sorted(fewest.items())),
        tuple(PodAffinity(*one) for one in sorted({(one.pod_class, one.topology) for one in rules.affinity})),
        tuple(sorted(rules.spread, key=lambda one: (one.pod_class, one.topology))),
        tuple(sorted((name, amount) for name, amount in amounts.items() if amount)),
        tuple(sorted(rules.shared)),
    )


def is_wide(rules: PodRules) -> bool:
    """Return whether the number of pods that fit on a node also depends on pods that run on other nodes."""
    wide = rules.affinity or rules.spread or rules.shared
    return bool(wide) or any(one.topology != HOST for one in rules.anti_affinity)


def is_entangled(rules: tuple[PodRules, ...]) -> bool:
    """Return whether pods of one group count in a rule that limits another group."""
    for number, own in enumerate(rules):
        limits: tuple[Limit, ...] = (*own.anti_affinity, *own.affinity, *own.spread)
        limiting = {limit.pod_class for limit in limits}
        if any(not limiting.isdisjoint(other.classes) for other in (*rules[:number], *rules[number + 1 :])):
            return True
    return False


def lasting(rules: PodRules) -> PodRules:
    """Return only the rules that no later pod or node can help to satisfy: a job that breaks one of them never fits."""
    own = tuple(one for one in rules.anti_affinity if one.topology == HOST)
    return PodRules(rules.classes, own, amounts=rules.amounts, shared=rules.shared)


MAX_WEIGHT = 1 << 20
"""The largest weight of one preference: even the sum over many pods fits 64 bits."""


def preferences_of(job: Job) -> tuple[Preferences, ...]:
    """Return `Ask.preferences` of a job."""
    own = job.preferences
    if len(own) not in (0, 1, len(job.groups)):
        raise StateError(
            f"job {job.id!r} has {len(own)} preferences for {len(job.groups)} groups; expected one for each"
        )
    for each in own:
        likes, pulls = [one.weight for one in each.nodes], [one.weight for one in each.pods]
        skews = [one.max_skew for one in each.spread]
        names = [*each.avoided, *(one.node_set for one in each.nodes)]
        names += [name for pull in each.pods for name in (pull.pod_class, pull.topology)]
        names += [name for even in each.spread for name in (even.pod_class, even.topology)]
        if not all(names) or not all(1 <= weight <= MAX_WEIGHT for weight in (*likes, *skews, *map(abs, pulls))):
            raise StateError(f"job {job.id!r} prefers {each}; expected names, and weights from 1 to {MAX_WEIGHT}")
    if all(each == Preferences() for each in own):
        return ()
    return own if len(own) == len(job.groups) else own * len(job.groups)


def roles_of(job: Job) -> list[tuple[tuple[PodGroup, ...], tuple[str, ...], tuple[str, ...], str]]:
    """Return each group alone, with the GPU models, the flavors and the node set that its pods accept."""
    if len(job.roles) != len(job.groups):
        raise StateError(
            f"job {job.id!r} has {len(job.roles)} roles for {len(job.groups)} groups; expected one for each"
        )
    return [
        ((group,), role.models or job.models, role.flavors or job.flavors, role.node_set or job.node_set)
        for group, role in zip(job.groups, job.roles, strict=True)
    ]


def check_elastic(job: Job, ask: Ask) -> None:
    """Raise StateError for topology requests that leave open which pods an elastic gang may lose or gain."""
    if ask.affinity is not None or any(group.within for group in job.groups):
        raise StateError(
            f"elastic gang {job.id!r} asks for segments, its pods apart or an affinity group; "
            "expected none of these with a floor"
        )


def check_rules(job: Job, ask: Ask) -> None:
    """Raise StateError for topology requests that cannot be combined with affinity rules over several nodes."""
    if any(is_wide(rules) for rules in ask.rules) and (
        ask.affinity is not None or any(group.within for group in job.groups)
    ):
        raise StateError(
            f"job {job.id!r} has affinity rules over several nodes, and segments, its pods apart or an affinity group; "
            "expected only one of these"
        )


def level_of(job: Job) -> int:
    """Return the level that the job asks for; -1 for a single pod, which is in one domain of every level anyway."""
    if job.within not in LEVELS:
        raise StateError(f"job {job.id!r} asks for the level {job.within!r}; expected one of {', '.join(LEVELS)}")
    return LEVELS.index(job.within) if job.pods > 1 else -1


Cuts = tuple[tuple[int, int], ...]
"""The segments of a group, the widest first: the pods in a segment, and the level (index in LEVELS) of its domain.
"""


def cuts_of(groups: tuple[PodGroup, ...]) -> tuple[Cuts, ...]:
    """Return `Shape.cuts`, without segments of one pod, and without segments equal to those of a narrower level."""
    narrowest = [{pods: LEVELS.index(level) for level, pods in levels_of(group)} for group in groups]
    cuts = tuple(tuple(one for one in found.items() if one[0] > 1) for found in narrowest)
    return cuts if any(cuts) else ()


def levels_of(group: PodGroup) -> tuple[tuple[Level, int], ...]:
    """Return the levels of a group's segments, the widest first, each with the number of pods in a segment."""
    found, around = list[tuple[Level, int]](), group.count
    for level, segment in ((group.within, group.segment or group.count), *group.inner) if group.within else ():
        around = min(segment, around)
        found.append((level, around))
    return tuple(found)


def check_cuts(job: Job) -> None:
    """Raise StateError for an unknown level, and for segments that cannot be nested."""
    for group in job.groups:
        for level, segment in ((group.within, group.segment), *group.inner):
            if level not in ("", *LEVELS) or (segment and not level):
                expected = f"one of {', '.join(LEVELS)} for its segments"
                raise StateError(f"a group of job {job.id!r} asks for the level {level!r}; expected {expected}")
        cuts, around = levels_of(group), group.count
        for (level, segment), (outer, _) in zip(cuts if group.inner else (), (("", 0), *cuts), strict=False):
            if segment < 1 or around % segment or (outer and LEVELS.index(level) >= LEVELS.index(outer)):
                inside = f" a level inside {outer} and" if outer else ""
                raise StateError(
                    f"a group of job {job.id!r} asks for segments of {segment} pods, each in one {level}; "
                    f"expected{inside} a length that divides {around}"
                )
            around = segment
        if group.inner and not group.within:
            raise StateError(f"a group of job {job.id!r} has only inner segments; expected `within` too")
