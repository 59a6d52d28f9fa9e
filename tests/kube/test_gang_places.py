"""From pods with rules to bound gangs, without an API server: whole and by the rules exactly where that can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations, product

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples
from tests.kube.live import profile
from tests.kube.test_pod_rules import HCA, HOST, ZONE, ZONES, mirror_with

from kant.kube.act.plan_executor import KubeExecutor
from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.reconcile.fleet import cluster_of
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workload import Phase
from kant.kube.reconcile.workloads import Workloads
from kant.live.core import Core
from kant.queueing.preemption.policy import Preemption
from kant.scheduler.profile import Profile
from kant.testing import make_profile

MADE = "2026-01-01T00:00:00Z"
keys, apps = st.sampled_from((HOST, ZONE)), st.sampled_from(("a", "b"))
Wish = tuple[str, str, str, str]
"""The app of a pod; and what it says of pods of which app by which label: near, apart, even or nothing."""
wishes = st.one_of(
    st.tuples(apps, st.sampled_from(("apart", "even", "")), apps, keys),
    st.tuples(apps, st.just("near"), apps, st.just(ZONE)),
)


def pod(name: str, wish: Wish, node: str = "") -> k.Pod:
    app, rule, about, key = wish
    terms = k.PodAffinity((k.PodTerm(k.LabelSelector({"app": about}), key),))
    affinity = {"near": k.Affinity(pod_affinity=terms), "apart": k.Affinity(pod_anti_affinity=terms)}.get(rule)
    even = k.SpreadConstraint(key, "DoNotSchedule", 1, label_selector=k.LabelSelector({"app": about}))
    labels = {"app": app} | ({} if node else {"scheduling.kant.dev/pod-group": "g"})
    meta = k.Meta(name, "ml", uid=name, creation_timestamp=MADE, labels=labels)
    container = k.Container(k.Resources({"cpu": "1", "memory": "1Mi" if app == "a" else "2Mi"}))
    spec = k.PodSpec(
        node_name=node,
        scheduler_name="" if node else "kant",
        containers=(container,),
        affinity=affinity,
        topology_spread_constraints=(even,) if rule == "even" else (),
    )
    return k.Pod(meta, spec)


def told(gang: list[k.Pod]) -> list[k.Pod]:
    """The pods, which say that all of them have to run."""
    for one in gang:
        assert one.metadata.labels is not None
        one.metadata.labels["scheduling.kant.dev/min-available"] = str(len(gang))
    return gang


def placed(existing: list[k.Pod], gang: list[k.Pod]) -> dict[str, str]:
    """Where one cycle puts the pods of the gang; empty where it waits."""
    mirror = mirror_with(*existing, *told(gang), cpu=2)
    executor = executor_of(mirror, profile())
    executor.execute(executor.core.cycle())
    executor.core.state.check()
    running = [one for one in executor.workloads.by_job.values() if one.phase is Phase.PLACED and not one.foreign]
    return {slot.pod: slot.node for one in running for slot in one.slots}


def executor_of(
    mirror: Mirror,
    rules: Profile,
    translation: Translation | None = None,
    follow: Callable[[Core], None] = lambda core: None,
) -> KubeExecutor:
    """Of a state that has just been built. `follow` is told of its core before anything happens."""
    translation = translation or Translation(mirror)
    translation.begin(0)
    spec = cluster_of(mirror, translation, 0)
    assert spec is not None
    core = Core(spec, rules, clock=lambda: 1e9)
    follow(core)
    leaving: dict[str, dict[str, None]] = {}
    workloads = Workloads(core, mirror, translation, leaving)
    noted = [workloads.members.note(uid, one) for uid, one in mirror.pods.items()]
    workloads.settle_all({key: None for key in noted if key is not None})
    workloads.rule_changes.count_beside([(uid, node) for node, own in mirror.on_node.items() for uid in own])
    return KubeExecutor(core, mirror, workloads, leaving)


def keeps_all(existing: list[tuple[str, Wish]], gang: list[tuple[str, Wish]]) -> bool:
    """By definition, of nodes that take two pods each.

    A pod is spread as it comes, in some order of the gang: who comes later need not keep to its rule.
    """
    every = [*existing, *gang]
    if any(sum(node == at for at, _ in every) > 2 for node in ZONES):
        return False

    def domain(key: str, node: str) -> str:
        return node if key == HOST else ZONES[node]

    for number, (node, (_, rule, about, key)) in enumerate(gang, len(existing)):
        others = [(domain(key, at), one[0]) for index, (at, one) in enumerate(every) if index != number]
        here = domain(key, node)
        if rule == "apart" and (here, about) in others:
            return False

    def is_even(there: Sequence[tuple[str, Wish]]) -> bool:
        """Whether the last of these pods may be spread so."""
        node, (_, rule, about, key) = there[-1]
        found = Counter(domain(key, at) for at, one in there if one[0] == about)
        return rule != "even" or found[domain(key, node)] - min(found[domain(key, at)] for at in ZONES) <= 1

    orders = ([*existing, *order] for order in permutations(gang))
    if not any(all(is_even(every[:at]) for at in range(len(existing) + 1, len(every) + 1)) for every in orders):
        return False
    for node, (_, rule, about, key) in existing:
        there = {domain(key, at) for at, one in gang if one[0] == about}
        if rule == "apart" and domain(key, node) in there:
            return False
    for rule in {wish[1:] for _, wish in gang if wish[1] == "near"}:
        carriers = [(domain(rule[2], node), wish[0]) for node, wish in gang if wish[1:] == rule]
        beside = {domain(rule[2], node) for node, wish in existing if wish[0] == rule[1]}
        others = {domain(rule[2], node) for node, wish in gang if wish[0] == rule[1] and wish[1:] != rule}
        alone = {here for here, _ in carriers if here not in beside | others}
        if alone and (beside or len(alone) > 1 or (alone.pop(), rule[1]) not in carriers):
            return False
    return True


@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(st.sampled_from(sorted(ZONES)), wishes), max_size=2), st.lists(wishes, min_size=2, max_size=3)
)
@example([], [("a", "even", "b", ZONE), *[("b", "near", "a", ZONE)] * 2])
def test_a_gang_starts_whole_by_its_rules_exactly_where_it_can(there: list[tuple[str, Wish]], new: list[Wish]) -> None:
    """Pods of one app are alike, as the replicas of one template: they ask for the same amounts by the same rules."""
    alike = {wish[0]: wish for wish in new}
    new = [alike[wish[0]] for wish in new]
    existing = [pod(f"old-{number}", wish, node) for number, (node, wish) in enumerate(there)]
    if any(sum(node == at for at, _ in there) > 2 for node in ZONES):
        return
    found = placed(existing, [pod(f"new-{number}", wish) for number, wish in enumerate(new)])
    if found:
        assert len(found) == len(new)
        gang = [(found[f"new-{number}"], wish) for number, wish in enumerate(new)]
        assert keeps_all(there, gang)
    else:
        every = product(ZONES, repeat=len(new))
        assert not any(keeps_all(there, list(zip(nodes, new, strict=True))) for nodes in every)


def asking(name: str, cpu: str, priority: int, zone: str = "", node: str = "", gang: int = 0) -> k.Pod:
    """A pod that may be stopped; of a gang of so many pods that keep apart by zone, where `gang` says so."""
    labels = {"app": "a" if gang else "b"}
    if gang:
        labels |= {"scheduling.kant.dev/pod-group": "g", "scheduling.kant.dev/min-available": str(gang)}
    meta = k.Meta(name, "ml", uid=name, creation_timestamp=MADE, labels=labels)
    meta = replace(meta, annotations={"scheduling.kant.dev/preemptible": "true"})
    apart = k.Affinity(pod_anti_affinity=k.PodAffinity((k.PodTerm(k.LabelSelector({"app": "a"}), ZONE),)))
    spec = k.PodSpec(
        node_name=node,
        scheduler_name="kant",
        priority=priority,
        containers=(k.Container(k.Resources({"cpu": cpu, "memory": "1Mi"})),),
        node_selector={ZONE: zone} if zone else None,
        affinity=apart if gang else None,
    )
    return k.Pod(meta, spec)


def test_a_gang_for_which_others_would_stop_in_vain_holds_up_nobody_who_has_a_node() -> None:
    """Its two pods ask for one zone and keep apart by zone."""
    there = [asking(f"low-{node}", "2", 0, node=node) for node in ZONES if ZONES[node] == "a"]
    mirror = mirror_with(
        *there, *(asking(f"g-{i}", "1", 10, "a", gang=2) for i in range(2)), asking("next", "2", 5, "b"), cpu=2
    )
    executor = executor_of(mirror, make_profile("fifo", "backfill", "kant", preemption=Preemption(min_run_s=0)))
    for _ in range(2):
        executor.execute(executor.core.cycle())
    executor.core.state.check()
    placed = [one for one in executor.workloads.by_job.values() if one.phase is Phase.PLACED]
    places = {slot.pod for one in placed for slot in one.slots}
    assert "next" in places
    assert not executor.evictions
    assert not any(name.startswith("g-") for name in places)


def test_nobody_stops_for_a_gang_whose_devices_would_be_freed_in_vain() -> None:
    """Each of its pods asks for all devices of a node, and only one node has them."""
    first, *others = [node for node in ZONES if ZONES[node] == "a"]
    there = [asking(f"low-{node}", "2", 0, node=node) for node in (first, *others)]
    there += [wanting(asking(f"hca-{node}", "0", 20, node=node), 1) for node in others]
    gang = [wanting(asking(f"g-{i}", "1", 10, "a", gang=2), 2) for i in range(2)]
    gang = [replace(one, spec=replace(one.spec, affinity=None)) for one in gang]
    executor = executor_of(
        mirror_with(*there, *gang, cpu=2), make_profile("fifo", "backfill", "kant", preemption=Preemption(min_run_s=0))
    )
    executor.execute(executor.core.cycle())
    workloads = executor.workloads
    key = workloads.members.key_of["g-0"]
    assert not executor.evictions
    assert workloads.members.by_key[key].phase is Phase.WAITING


def wanting(pod: k.Pod, devices: int) -> k.Pod:
    """The pod with so many devices that the core does not count."""
    (container,) = pod.spec.containers
    requests = {**container.resources.requests, HCA: str(devices)}
    return replace(pod, spec=replace(pod.spec, containers=(k.Container(k.Resources(requests)),)))


def test_who_keeps_apart_by_zone_is_bound_after_all_who_leave_the_zone_for_it() -> None:
    """Its victims stand on both nodes of the zone; who says nothing of zones waits for its own node alone."""
    there = [asking(f"low-{node}", "2", 0, node=node) for node in ZONES if ZONES[node] == "a"]
    terms = k.PodAffinity((k.PodTerm(k.LabelSelector({"app": "b"}), ZONE),))
    for affinity in (k.Affinity(pod_anti_affinity=terms), None):
        high = asking("high", "1", 10, "a")
        meta = replace(high.metadata, labels={"app": "high"})
        high = replace(high, metadata=meta, spec=replace(high.spec, affinity=affinity))
        executor = executor_of(
            mirror_with(*there, high, cpu=2),
            make_profile("fifo", "backfill", "kant", preemption=Preemption(min_run_s=0)),
        )
        executor.execute(executor.core.cycle())
        placed = next(one for one in executor.workloads.by_job.values() if one.key == "high")
        assert placed.phase is Phase.PLACED
        going = {uid for own in executor.leaving.values() for uid in own}
        assert placed.after == (going if affinity else frozenset())
        assert len(going) == (len(there) if affinity else 1)
