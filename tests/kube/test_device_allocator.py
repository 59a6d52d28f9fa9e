"""The allocator against every possible choice: it finds devices exactly if there are some, and gives none out twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product

from hypothesis import example, given
from hypothesis import strategies as st

from kant.kube.objects import device_views as d
from kant.kube.objects import views as k
from kant.kube.translate.device_allocator import Free, Grant, Task, allocate
from kant.kube.translate.device_claims import Asked, Constraint, Want
from kant.kube.translate.devices import Candidate, Inventory

DRIVER, LINK = "d", "d/link"
NODES = ("n0", "n1")
NODE_VIEWS = {name: k.Node(k.Meta(name)) for name in NODES}
Device = tuple[str, str, int, tuple[int, ...]]
"""Its kind, its link ("" for none), how much of the counter it takes (0: it shares nothing), and who sees it."""

kinds = st.sampled_from("ab")
devices = st.lists(
    st.tuples(kinds, st.sampled_from(("", "x", "y")), st.integers(0, 2), st.sampled_from(((0,), (1,), (0, 1)))),
    max_size=5,
)
wants = st.tuples(st.sampled_from(("a", "b", "ab")), st.integers(0, 3), st.booleans())
"""The kinds that will do, how many (0: all), and whether with access of an administrator."""
requests = st.lists(st.lists(wants, min_size=1, max_size=2).map(tuple), min_size=1, max_size=2).map(tuple)
rules = st.sampled_from(((), (("", False),), (("", True),), (("r0", False),)))
claims = st.lists(st.tuples(requests, rules, st.sampled_from(((0,), (1,), (0, 1)))), min_size=1, max_size=2)


def inventory(found: list[Device], counter: int) -> Inventory:
    """One pool for each reach, each with a counter."""
    slices = []
    for reach in ((0,), (1,), (0, 1)):
        own = [
            d.Device(
                f"{number}",
                {"kind": d.DeviceAttribute(string_value=kind)}
                | ({"link": d.DeviceAttribute(string_value=link)} if link else {}),
                consumes_counters=(d.CounterSet(counter_set="s", counters={"c": d.AmountOf(takes)}),) if takes else (),
            )
            for number, (kind, link, takes, seen) in enumerate(found)
            if seen == reach
        ]
        name = "-".join(map(str, reach))
        pool = d.Pool(name, 1, 2)
        node = NODES[reach[0]] if len(reach) == 1 else ""
        slices.append(
            d.ResourceSlice(k.Meta(name), d.SliceSpec(DRIVER, pool, node, None, not node, devices=tuple(own)))
        )
        shared = (d.CounterSet("s", counters={"c": d.AmountOf(counter)}),)
        slices.append(
            d.ResourceSlice(
                k.Meta(f"{name}-c"), d.SliceSpec(DRIVER, pool, node, None, not node, shared_counters=shared)
            )
        )
    return Inventory(slices)


def tasks_of(
    asked: list[tuple[tuple[tuple[tuple[str, int, bool], ...], ...], tuple[tuple[str, bool], ...], tuple[int, ...]]],
    known: Inventory,
) -> list[Task]:
    found = []
    for own, constraints, nodes in asked:
        wanted = tuple(
            tuple(
                Want(f"r{at}/{sub}", kind, number, admin=admin)
                for sub, (kind, number, admin) in enumerate(alternatives)
            )
            for at, alternatives in enumerate(own)
        )
        ruled = tuple(Constraint((name,) if name else (), LINK, distinct) for name, distinct in constraints)
        seen = [known.at(NODE_VIEWS[NODES[node]]) for node in nodes]
        common = tuple(one for one in seen[0] if all(one in others for others in seen))
        found.append(Task(Asked(wanted, ruled), common))
    return found


def matches(want: Want, device: Candidate, _: str = "") -> bool:
    kind = device.view.attributes["kind"].string_value
    return kind is not None and kind in want.device_class


def choices(task: Task) -> Iterator[list[Grant]]:
    """Every way to give a claim what it asks for, whatever others have."""
    for picked in product(*task.asked.requests):
        ways = []
        for want in picked:
            able = [one for one in task.devices if matches(want, one)]
            sizes = combinations(able, want.number or len(able)) if able else iter(())
            ways.append([[Grant(want, one) for one in some] for some in sizes])
        for way in product(*ways):
            yield [grant for some in way for grant in some]


def is_allowed(tasks: list[Task], way: tuple[list[Grant], ...], known: Inventory, held: set[str]) -> bool:
    taken = [grant.device for own in way for grant in own if not grant.want.admin]
    if len(taken) != len(set(taken)) or any(one.id[2] in held for one in taken):
        return False
    used: Counter[object] = Counter()
    busy = [one for one in known.by_id.values() if one.id[2] in held]
    for one in (*taken, *busy):
        used.update(dict(one.takes))
    if any(
        amount > known.counters[counter]
        for counter, amount in used.items()
        if any(counter in dict(one.takes) for one in taken)
    ):  # type: ignore[index]
        return False
    for task, own in zip(tasks, way, strict=True):
        for grant in own:
            if grant.want.admin and sum(other.device is grant.device for other in own) > 1:
                return False
        for rule in task.asked.constraints:
            values = [grant.device.attribute(LINK) for grant in own if rule.is_about(grant.want)]
            texts = [getattr(value, "string_value", None) for value in values]
            if None in texts or (len(set(texts)) < len(texts) if rule.distinct else len(set(texts)) > 1):
                return False
    return True


@given(devices, st.integers(0, 4), claims, st.sets(st.sampled_from("01234"), max_size=2))
@example([("a", "", 0, (0,))], 0, [(((("a", 0, True),), (("a", 0, False),)), (), (0,))], set())
@example([("a", "", 0, (1,))] * 2, 0, [(((("a", 1, True),), (("a", 1, False),)), (), (1,))], set())
def test_devices_are_found_exactly_if_there_are_some(found, counter, asked, held) -> None:  # type: ignore[no-untyped-def]
    known = inventory(found, counter)
    tasks = tasks_of(asked, known)
    busy = [one for one in known.by_id.values() if one.id[2] in held]
    left = dict(known.counters)
    for one in busy:
        for name, amount in one.takes:
            left[name] -= amount
    free = Free(lambda one: one[2] not in held, left.__getitem__, matches)
    answer = allocate(tasks, free)
    ways = (way for way in product(*(list(choices(task)) for task in tasks)))
    possible = any(is_allowed(tasks, way, known, held) for way in ways)
    assert (answer is not None) == possible
    if answer is not None:
        assert is_allowed(tasks, tuple(answer), known, held)
        for task, own in zip(tasks, answer, strict=True):
            for at, alternatives in enumerate(task.asked.requests):
                given_ = [grant for grant in own if grant.want.name.startswith(f"r{at}/")]
                (want,) = {grant.want for grant in given_}
                assert want in alternatives and len(given_) == (want.number or len(given_))


def test_claims_of_one_gang_do_not_get_the_same_device() -> None:
    one = (((("a", 1, False),),), (), (0,))
    free = Free(lambda device: True, lambda counter: 9, matches)
    for found, possible in (([("a", "", 0, (0,))], False), ([("a", "", 0, (0,)), ("a", "", 0, (0,))], True)):
        answer = allocate(tasks_of([one, one], inventory(found, 0)), free)
        assert (answer is not None) == possible
        assert answer is None or len({grant.device.id for own in answer for grant in own}) == 2
