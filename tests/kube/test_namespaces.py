"""Namespaces that affinity selects by labels: whatever comes first, rules are about the pods that the API means."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.translate.neighbours import rules_of, wanted_beside

SPACES = ("a", "b", "c")
values = st.sampled_from(("x", "y"))
labels = st.one_of(
    st.just({}), st.builds(lambda team: {"team": team}, values), st.fixed_dictionaries({"team": values, "env": values})
)
selectors = st.one_of(
    st.builds(lambda team: k.LabelSelector({"team": team}), values),
    st.builds(
        lambda key, operator, values: k.LabelSelector(None, (k.Requirement(key, operator, values),)),
        st.sampled_from(("team", "env")),
        st.sampled_from(("In", "NotIn")),
        st.sampled_from((("x",), ("x", "y"))),
    ),
    st.just(k.LabelSelector()),
    st.none(),
)
terms = st.builds(
    lambda listed, selector: k.PodTerm(k.LabelSelector({"app": "db"}), "zone", listed, selector),
    st.sampled_from(((), ("a",), ("b", "c"))),
    selectors,
)
changes = st.lists(st.tuples(st.sampled_from(SPACES), st.none() | labels), max_size=6)


def asking(term: k.PodTerm, near: bool) -> k.Pod:
    both = k.PodAffinity((term,))
    affinity = k.Affinity(pod_affinity=both) if near else k.Affinity(pod_anti_affinity=both)
    return k.Pod(k.Meta("p", "a", uid="p"), k.PodSpec(affinity=affinity))


def database(space: str) -> k.Pod:
    return k.Pod(k.Meta("db", space, uid=f"db-{space}", labels={"app": "db"}))


def is_meant(term: k.PodTerm, space: str, known: dict[str, dict[str, str]]) -> bool:
    """By the words of the API: the namespaces listed and those selected; neither means the pod's own."""
    selector = term.namespace_selector
    if selector is None:
        return space in (term.namespaces or ("a",))
    if space in term.namespaces:
        return True
    own = known.get(space)
    if selector == k.LabelSelector():
        return True
    if own is None:
        return False
    if any(own.get(key) != value for key, value in (selector.match_labels or {}).items()):
        return False
    return all((own.get(one.key) in one.values) == (one.operator == "In") for one in selector.match_expressions)


@given(terms, st.booleans(), changes, changes, st.booleans())
def test_a_rule_is_about_the_namespaces_that_have_the_labels_now(
    term: k.PodTerm,
    near: bool,
    before: list[tuple[str, dict[str, str] | None]],
    after: list[tuple[str, dict[str, str] | None]],
    listed: bool,
) -> None:
    mirror, known = Mirror(), dict[str, dict[str, str]]()

    def happen(changed: list[tuple[str, dict[str, str] | None]]) -> None:
        for space, own in changed:
            view = k.Namespace(k.Meta(space, labels=own))
            known.pop(space, None)
            if own is not None:
                known[space] = own
            if listed:
                mirror.all_namespaces.replace([k.Namespace(k.Meta(name, labels=had)) for name, had in known.items()])
            else:
                mirror.all_namespaces.change("deleted" if own is None else "modified", view)

    happen(before)
    mirror.pod("added", asking(term, near))
    for now in (before, after):
        if now is after:
            happen(after)
        pod = mirror.pods["p"]
        (rule,) = wanted_beside(pod) if near else rules_of(pod)
        for space in SPACES:
            assert rule.is_about(database(space)) == is_meant(term, space, known)
    mirror.pod("modified", asking(term, near))  # the watch says the pod again, as it was made
    assert mirror.pods["p"] == pod


def test_pods_are_touched_where_they_select_other_namespaces_and_only_then() -> None:
    mirror, team = Mirror(), k.LabelSelector({"team": "x"})
    mirror.pod("added", asking(k.PodTerm(k.LabelSelector({"app": "db"}), "zone", (), team), near=False))
    mirror.touched.clear()
    assert mirror.all_namespaces.change("added", k.Namespace(k.Meta("b", labels={"team": "y"})))
    assert not mirror.namespaces.touched and not mirror.touched
    assert mirror.all_namespaces.change("modified", k.Namespace(k.Meta("b", labels={"team": "x"})))
    assert mirror.namespaces.touched and list(mirror.touched) == ["p"]
    mirror.pod("deleted", mirror.pods["p"])
    assert not mirror.namespaces.selecting


def test_without_the_right_to_list_them_selectors_stand_as_they_are() -> None:
    mirror = Mirror()
    mirror.namespaces.labels = None
    pod = asking(k.PodTerm(k.LabelSelector({"app": "db"}), "zone", (), k.LabelSelector({"team": "x"})), near=True)
    mirror.pod("added", pod)
    assert mirror.pods["p"] == pod
    mirror.all_namespaces.replace([k.Namespace(k.Meta("b", labels={"team": "x"}))])  # the right has been given
    (rule,) = wanted_beside(mirror.pods["p"])
    assert rule.namespaces == ("b",)
