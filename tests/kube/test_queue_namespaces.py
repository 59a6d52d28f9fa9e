"""Queues that are for some namespaces: who may name which, and whose pods are looked at again when that changes."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.kube.api import Api
from tests.kube.live import bound, change, condition, of_queue, queue, says, status, until
from tests.kube.objects import make_node, make_pod
from tests.kube.running import Kant

from kant.kube.objects.views import Unstructured
from kant.kube.translate.queue_namespaces import QueueNamespaces
from kant.kube.translate.queues import queue_config_of

SPACES, NAMES = ("a", "b", "c"), ("org", "team", "other")
expressions = st.one_of(
    st.builds(
        lambda operator, values: {"key": "env", "operator": operator, "values": values},
        st.sampled_from(("In", "NotIn")), st.sampled_from((["x"], ["x", "y"])),
    ),
    st.builds(lambda operator: {"key": "env", "operator": operator}, st.sampled_from(("Exists", "DoesNotExist"))),
)  # fmt: skip
selectors = st.fixed_dictionaries(
    {},
    optional={
        "matchLabels": st.sampled_from(({"env": "x"}, {"env": "y"}, {})),
        "matchExpressions": st.lists(expressions, max_size=2),
    },
)
specs = st.fixed_dictionaries(
    {"parent": st.sampled_from(("", *NAMES))},
    optional={"namespaces": st.lists(st.sampled_from(SPACES), unique=True), "namespaceSelector": selectors},
)
worlds = st.tuples(
    st.dictionaries(st.sampled_from(NAMES), specs),
    st.dictionaries(st.sampled_from(SPACES), st.sampled_from(({}, {"env": "x"}, {"env": "y"}))),
)


def loose(name: str, spec: dict[str, Any]) -> Unstructured:
    body = {"apiVersion": "scheduling.kant.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
    return msgspec.json.decode(msgspec.json.encode(body), type=Unstructured)


def selected(selector: dict[str, Any], own: dict[str, str]) -> bool:
    """By the words of the API."""
    said = all(own.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    for one in selector.get("matchExpressions", []):
        there = "env" in own
        meets = {"Exists": there, "DoesNotExist": not there}
        inside = there and own["env"] in one.get("values", [])
        said = said and meets.get(one["operator"], inside if one["operator"] == "In" else not inside)
    return said


def may(specs: dict[str, Any], parents: dict[str, str], labels: dict[str, Any], name: str, space: str) -> bool:
    while name:
        spec = specs.get(name, {})
        listed, selector = spec.get("namespaces", []), spec.get("namespaceSelector")
        if listed or selector is not None:
            named = selector is not None and space in labels and selected(selector, labels[space])
            if space not in listed and not named:
                return False
        name = parents.get(name, "")
    return True


@given(st.lists(worlds, min_size=1, max_size=4))
def test_a_pod_may_name_the_queues_that_are_for_its_namespace_and_is_looked_at_when_that_changes(
    story: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    known = QueueNamespaces()
    before = {(name, space): True for name in NAMES for space in SPACES}
    for specs, labels in story:
        objects = [loose(name, spec) for name, spec in specs.items()]
        config, _ = queue_config_of(objects)
        parents = {queue.name: queue.parent for queue in config.queues}
        assert not known.follow(objects, config, labels)
        now = {(name, space): not known.refuses(name, space) for name, space in before}
        assert now == {(name, space): may(specs, parents, labels, name, space) for name, space in before}
        changed = known.take_changed()
        if changed is not None:
            for (name, space), was in before.items():
                assert space in changed or now[name, space] == was
        before = now


def test_who_may_not_list_namespaces_knows_those_that_are_listed_alone() -> None:
    known = QueueNamespaces()
    one = loose("team", {"namespaces": ["a"], "namespaceSelector": {"matchLabels": {"env": "x"}}})
    config, _ = queue_config_of([one])
    wrong = known.follow([one], config, None)
    assert "spec.namespaceSelector: expected permission for Kant to list namespaces" in wrong["team"]
    assert not known.refuses("team", "a") and known.refuses("team", "b")


async def test_a_pod_of_another_namespace_is_refused_until_the_queue_is_for_it(api: Api, kant: Kant) -> None:
    async def label(space: str, **labels: str | None) -> None:
        await api.patch(f"/api/v1/namespaces/{space}", {"metadata": {"labels": labels}})

    for space in ("red", "blue"):
        await api.namespace(space)
    await label("red", team="red")
    await label("blue", team=None)
    await api.create(make_node("n0", 8))
    chosen = {"matchLabels": {"team": "red"}}
    await api.apply([queue("org", 0, namespaceSelector=chosen), queue("team", 4, parent="org"), queue("free", 1)])
    async with kant():
        for space in ("red", "blue"):
            await api.create(make_pod(f"of-{space}", labels=of_queue("team"), namespace=space))
        await api.create(make_pod("anybody", labels=of_queue("free"), namespace="blue"))
        refused = "queue team is below queue org, which does not accept pods of namespace blue"
        pods = await until(api, lambda pods: says(pods, "of-blue", refused) and bound(pods) == ["anybody", "of-red"])
        blue = next(pod for pod in pods if pod["metadata"]["name"] == "of-blue")
        assert condition(blue)["reason"] == "SchedulerError"
        await label("blue", team="red")  # the namespace comes to be one of them
        await until(api, lambda pods: "of-blue" in bound(pods))
        await label("blue", team=None)
        await api.create(make_pod("late", 2, labels=of_queue("team"), namespace="blue"))
        await until(api, lambda pods: says(pods, "late", refused) and "of-blue" in bound(pods))  # who runs runs on
        await change(api, "queues", "org", namespaces=["blue"])
        await until(api, lambda pods: "late" in bound(pods))
        await api.create(make_pod("waits", 1, labels=of_queue("team"), namespace="blue"))
        await until(api, lambda pods: says(pods, "waits", "quota"))
        await change(api, "queues", "org", namespaces=["red"])  # a job that waits is one no more
        await until(api, lambda pods: says(pods, "waits", refused))
        await status(api, "queues", "team", lambda s: s.get("waiting") == 0)
    for space in ("red", "blue"):  # labels of namespaces outlive a test
        await label(space, team=None)
