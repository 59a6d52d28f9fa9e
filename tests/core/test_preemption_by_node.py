"""Victims by node for what only a driver knows: against all sets of victims there are."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.model.decision import Preempt, Start
from kant.queueing.preemption.policy import Preemption
from kant.scheduler.node_preemption import preempt_by_node
from kant.testing import Harness, make_cluster, make_job, make_profile

RUNNING = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2), st.booleans()), min_size=1, max_size=6)


@settings(max_examples=examples(25), deadline=None)
@given(
    nodes=st.lists(st.integers(1, 3), min_size=1, max_size=3), running=RUNNING, wish=st.integers(1, 3), data=st.data()
)
def test_as_few_leave_as_it_takes_and_nobody_where_no_set_of_victims_is_enough(
    nodes: list[int], running: list[tuple[int, int, bool]], wish: int, data: st.DataObject
) -> None:
    harness = Harness(make_cluster(*nodes), make_profile("fifo", preemption=Preemption(min_run_s=0, most=10**6)))
    for number, (gpus, priority, preemptible) in enumerate(running):
        harness.submit(make_job(f"j{number}", gpus, priority=priority, preemptible=preemptible))
        harness.cycle(number)  # each where it fits, or not at all
    there = {
        job: harness.nodes_of(job)[0] for job in harness.state.ids if harness.state.rows[job] in harness.state.running
    }
    for job in [job for job in harness.state.ids if harness.state.rows[job] in harness.state.pending]:
        harness.cancel(job)
    blocks = set(data.draw(st.lists(st.sampled_from(sorted(there)), unique=True))) if there else set()
    harness.submit(make_job("new", wish, priority=2))

    def will_do(node: str, gone: Collection[str]) -> bool:
        return not any(there[job] == node for job in blocks - set(gone))

    def suffices(node: str, gone: Collection[str]) -> bool:
        free = nodes[int(node[1:])] - sum(
            gpus
            for number, (gpus, _, _) in enumerate(running)
            if there.get(f"j{number}") == node and f"j{number}" not in gone
        )
        return will_do(node, gone) and free >= wish

    may_go = [job for job in there if running[int(job[1:])][1] < 2 and running[int(job[1:])][2]]
    sets = [one for size in range(1, len(may_go) + 1) for one in combinations(may_go, size)]
    able = [(node, one) for node in {*there.values()} for one in sets if suffices(node, one)]
    on = {node: [job for job in there if there[job] == node] for node in there.values()}
    row = harness.state.rows["new"]
    plan = preempt_by_node(harness.scheduler, harness.now, row, lambda node: on.get(node, ()), will_do)
    already = any(suffices(f"n{at}", ()) for at in range(len(nodes)))
    if already:
        return  # nobody would ask
    if plan is None:
        assert not able
        return
    (start,) = [one for one in plan.decisions if isinstance(one, Start)]
    gone = [one.job for one in plan.decisions if isinstance(one, Preempt)]
    node = f"n{int(start.allocation[0, 0])}"
    assert start.job == "new" and suffices(node, gone) and set(gone) <= set(may_go) & set(on[node])
    assert not any(suffices(node, [job for job in gone if job != kept]) for kept in gone)
    worst = max(running[int(job[1:])][1] for job in gone)
    cheaper = [one for at, one in able if set(one) <= set(on[at])]
    assert worst <= min(max(running[int(job[1:])][1] for job in one) for one in cheaper)
