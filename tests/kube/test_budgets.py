"""Budgets of disruptions: a job may be chosen exactly while the Eviction API would let all its pods go."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.views import (
    BudgetStatus,
    Condition,
    DisruptionBudget,
    DisruptionBudgetSpec,
    LabelSelector,
    Meta,
    Pod,
    PodSpec,
    PodStatus,
    Requirement,
)
from kant.kube.reconcile.budgets import DisruptionBudgets

SPACES, APPS = ("ml", "web"), ("a", "b")


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    labels = draw(st.sampled_from((None, {}, {"app": "a"}, {"app": "a", "tier": "x"}, {"app": "b"})))
    gone = draw(st.sampled_from((None, None, None, "2026-01-31T12:00:00Z")))
    name, space = str(draw(st.integers(0, 7))), draw(st.sampled_from(SPACES))
    ready = Condition("Ready", draw(st.sampled_from(("True", "True", "False"))))
    status = PodStatus(draw(st.sampled_from(("Running", "Running", "Pending", "Succeeded"))), (ready,))
    return Pod(Meta(name, space, uid=f"{space}-{name}", labels=labels, deletion_timestamp=gone), PodSpec("n0"), status)


@st.composite
def budgets(draw: st.DrawFn) -> DisruptionBudget:
    selector = draw(
        st.sampled_from(
            (
                None,
                LabelSelector(),
                LabelSelector({"app": "a"}),
                LabelSelector({"app": "b"}),
                LabelSelector(match_expressions=(Requirement("tier", "Exists"),)),
            )
        )
    )
    status = BudgetStatus(*draw(st.tuples(*[st.integers(0, 3)] * 3)), observed_generation=draw(st.integers(1, 2)))
    policy = draw(st.sampled_from(("", "IfHealthyBudget", "AlwaysAllow")))
    meta = Meta(str(draw(st.integers(0, 2))), draw(st.sampled_from(SPACES)), generation=2 if draw(st.booleans()) else 1)
    return DisruptionBudget(meta, DisruptionBudgetSpec(selector, policy), status)


def server_evicts(pods: list[Pod], budgets: list[DisruptionBudget]) -> Pod | None:
    """The Eviction API, as its source has it, asked about one pod after the other; the first that it refuses."""
    left = {id(budget): budget.status.disruptions_allowed for budget in budgets}
    for pod in pods:
        if pod.status.phase in ("Succeeded", "Failed", "Pending") or pod.metadata.deletion_timestamp is not None:
            continue
        labels = pod.metadata.labels or {}
        found = []
        for budget in budgets if labels else ():
            selector = budget.spec.selector
            if budget.metadata.namespace != pod.metadata.namespace or selector is None:
                continue
            same = all(labels.get(key) == value for key, value in (selector.match_labels or {}).items())
            if same and all(one.key in labels for one in selector.match_expressions):
                found.append(budget)
        if len(found) > 1:
            return pod
        for budget in found:
            status, spec = budget.status, budget.spec
            if pod.status.conditions[0].status != "True":
                if spec.unhealthy_pod_eviction_policy == "AlwaysAllow":
                    continue
                if status.current_healthy >= status.desired_healthy and status.desired_healthy > 0:
                    continue
            if status.observed_generation < budget.metadata.generation or left[id(budget)] <= 0:
                return pod
            left[id(budget)] -= 1
    return None


def name(thing: Any) -> tuple[str, str]:
    return thing.metadata.namespace, thing.metadata.name


@given(st.lists(pods(), max_size=6, unique_by=name), st.lists(budgets(), max_size=3, unique_by=name))
def test_refused_is_whom_the_eviction_api_would_refuse(all_pods: list[Pod], there: list[DisruptionBudget]) -> None:
    mirror = Mirror()
    mirror.replace_pods(all_pods)
    mirror.budgets.replace(there)
    found = DisruptionBudgets(mirror)
    found.follow((), mirror.budgets)
    refused = found.refuses(all_pods)
    assert (refused[0] if refused else None) == server_evicts(all_pods, there)


@given(st.lists(st.one_of(pods(), budgets()).map(lambda thing: (thing, False)) | pods().map(lambda pod: (pod, True))))
def test_what_is_followed_is_what_a_fresh_look_sees_and_who_may_fare_otherwise_is_named(
    changes: list[tuple[Pod | DisruptionBudget, bool]],
) -> None:
    mirror = Mirror()
    followed = DisruptionBudgets(mirror)
    verdicts: dict[str, object] = {}
    for thing, gone in changes:
        if isinstance(thing, Pod):
            mirror.pod("deleted" if gone else "modified", thing)
        else:
            mirror.budgets.change("deleted" if thing.status.current_healthy == 3 else "modified", thing)
        told = followed.follow(mirror.touched, mirror.budgets_touched)
        mirror.touched, mirror.budgets_touched = {}, {}
        fresh = DisruptionBudgets(mirror)
        fresh.follow((), mirror.budgets)
        for uid, pod in mirror.pods.items():
            assert followed.refuses([pod]) == fresh.refuses([pod])
            assert uid in told or verdicts.get(uid) == fresh.refuses([pod])
            verdicts[uid] = fresh.refuses([pod])
        assert followed._of == fresh._of and not {uid for uid in followed._of if uid not in mirror.pods}


def test_several_pods_of_one_budget_need_as_many_disruptions() -> None:
    ready = PodStatus("Running", (Condition("Ready", "True"),))
    gang = [Pod(Meta(f"w-{i}", "ml", uid=str(i), labels={"app": "a"}), PodSpec("n0"), ready) for i in range(4)]
    budget = DisruptionBudget(Meta("keep", "ml", generation=1), DisruptionBudgetSpec(LabelSelector({"app": "a"})))
    mirror = Mirror()
    mirror.replace_pods(gang)
    found = DisruptionBudgets(mirror)
    for allowed in range(6):
        mirror.budgets.change("modified", replace(budget, status=BudgetStatus(allowed, observed_generation=1)))
        found.follow((), mirror.budgets_touched)
        refused = found.refuses(gang)
        assert (refused is None) == (allowed >= 4)
        assert refused is None or (refused[0] is gang[allowed] and "disruption budget keep" in refused[1])
