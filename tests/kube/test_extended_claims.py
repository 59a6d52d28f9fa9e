"""What the claim that stands for extended resources of a pod asks for, and which class serves a resource."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.kube.objects import device_views as d
from kant.kube.objects import views as k
from kant.kube.translate.extended_claims import extended_of, served_by
from kant.kube.translate.resources import others_of

NAMES = ("example.com/a", "example.com/b", "example.com/not-served")
CLASSES = {NAMES[0]: "class-a", NAMES[1]: "class-b"}
ASKED = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 4), max_size=3)


def container(name: str, asked: dict[str, int], sidecar: bool = False) -> k.Container:
    words: dict[str, str | int | float] = {resource: str(count) for resource, count in asked.items()}
    return k.Container(k.Resources(words, words), (), "Always" if sidecar else None, name)


@settings(max_examples=examples(120))
@given(st.lists(st.tuples(ASKED, st.booleans()), max_size=3), st.lists(ASKED, min_size=1, max_size=3))
def test_a_claim_asks_for_what_the_pod_needs_at_one_time_and_no_container_gets_less_than_it_asks_for(
    first: list[tuple[dict[str, int], bool]], main: list[dict[str, int]]
) -> None:
    starting = tuple(container(f"i{at}", *one) for at, one in enumerate(first))
    running = tuple(container(f"c{at}", one) for at, one in enumerate(main))
    spec = k.PodSpec(containers=running, init_containers=starting)
    extended = extended_of(k.Pod(k.Meta("p", "ml", "u"), spec), CLASSES)
    asks = {name: others_of(spec).get(name, 0) for name in CLASSES}
    if extended is None:
        assert not any(asks.values())
        return
    sizes: dict[str, int] = {}
    total: dict[str, int] = defaultdict(int)
    for one in extended.claim().spec.devices.requests:
        assert one.exactly is not None and one.name not in sizes
        sizes[one.name] = one.exactly.count
        total[next(name for name in CLASSES if CLASSES[name] == one.exactly.device_class_name)] += one.exactly.count
    assert {name: total[name] for name in CLASSES} == asks
    gets: dict[tuple[str, str], list[str]] = defaultdict(list)
    for mapping in extended.mappings(tuple(CLASSES)):
        gets[mapping.container_name, mapping.resource_name].append(mapping.request_name)
    for each in (*starting, *running):
        for name in CLASSES:
            had = gets[each.name, name]
            number = int((each.resources.requests or {}).get(name, 0))
            assert (
                len(had) == len(set(had)) and (sum(sizes[one] for one in had) >= number) and bool(had) == (number > 0)
            )


def test_a_resource_is_served_by_the_newest_class_and_by_a_name_of_its_own() -> None:
    def of(name: str, created: str, resource: str = "example.com/a") -> d.DeviceClass:
        return d.DeviceClass(
            k.Meta(name, creation_timestamp=created), d.DeviceClassSpec(extended_resource_name=resource)
        )

    classes = [of("c", "2026-01-02T00:00:00Z"), of("b", "2026-01-02T00:00:00Z"), of("a", "2026-01-01T00:00:00Z")]
    served = served_by([*classes, of("none", "", "")])
    assert served.pop("example.com/a") == "b"
    assert served == {f"deviceclass.resource.kubernetes.io/{name}": name for name in ("a", "b", "c", "none")}
