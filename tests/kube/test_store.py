"""A store is what was said last, and tells of each change that matters once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kant.kube.follow.store import Store, own_name, version
from kant.kube.objects.views import DisruptionBudget, Meta

OBJECTS = st.builds(
    lambda name, version, label: DisruptionBudget(Meta(name, resource_version=version, labels={"l": label})),
    st.sampled_from("abc"), st.sampled_from(["", "1", "2"]), st.sampled_from("xy"),
)  # fmt: skip
STEPS = st.one_of(
    st.tuples(st.sampled_from(["added", "modified", "deleted"]), OBJECTS),
    st.tuples(st.just("replace"), st.lists(OBJECTS, max_size=4, unique_by=own_name)),
)


Step = tuple[str, DisruptionBudget | list[DisruptionBudget]]


@given(st.lists(STEPS, max_size=20), st.booleans())
def test_a_store_tells_of_what_is_new_and_keeps_all(steps: list[Step], own: bool) -> None:
    told: list[tuple[str, DisruptionBudget | None, DisruptionBudget | None]] = []
    store = Store[str, DisruptionBudget](
        own_name, lambda *words: told.append(words), (lambda one: one.metadata.labels) if own else version
    )
    known: dict[str, DisruptionBudget] = {}

    def is_new(before: DisruptionBudget, now: DisruptionBudget) -> bool:
        if own:
            return before.metadata.labels != now.metadata.labels
        return not now.metadata.resource_version or (before.metadata.resource_version != now.metadata.resource_version)

    for kind, given_ in steps:
        told.clear()
        before = dict(known)
        if isinstance(given_, list):
            store.replace(given_)
            known = {own_name(one): one for one in given_}
        else:
            assert store.change(kind, given_) == bool(told)
            known.pop(own_name(given_), None)
            if kind != "deleted":
                known[own_name(given_)] = given_
            elif own_name(given_) not in before:
                continue  # it is gone, and was not known: whoever is told looks, and finds nothing
        assert dict(store) == known
        names = before.keys() | known.keys()
        new = {
            name
            for name in names
            if (name in before) != (name in known)
            or (
                name in before
                and (isinstance(given_, list) or name == own_name(given_))
                and is_new(before[name], known[name])
            )
        }
        assert {name: (was, now) for name, was, now in told} == {n: (before.get(n), known.get(n)) for n in new}
