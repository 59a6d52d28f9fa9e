"""A cluster as it stands becomes an instance: what may move, what stays, and what is left for both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples

from kant.cluster import columns as c
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import NoFit
from kant.model.event import JobStarted, JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.optimize.packing.answer import pack
from kant.optimize.packing.instance import check_instance
from kant.optimize.packing.snapshot import snapshot_of
from kant.placement.placer import Placer
from kant.scheduler.profile import builtin_profile


def cluster() -> ClusterState:
    """Four nodes of two models in two leaves; the last has only so much CPU and memory."""
    return ClusterState(
        ClusterSpec(
            "four",
            (
                Node("a", 8, "H100", leaf="x"),
                Node("b", 8, "H100", leaf="x"),
                Node("c", 8, "A100", leaf="y"),
                Node("d", 4, "A100", cpu=8000, memory=4096, leaf="y"),
            ),
        )
    )


def start(state: ClusterState, job: Job) -> bool:
    """Submit a job, and start it where it fits."""
    state.apply(JobSubmitted(state.now, job))
    found = Placer(Snapshot(state), builtin_profile("fifo").placement, 0).place(state.shapes.of(job), 0)
    if isinstance(found, NoFit):
        return False
    state.apply(JobStarted(state.now, job.id, np.array(found)))
    return True


jobs = st.builds(
    lambda gpus, milli, pods, cpu, priority, models, preemptible, within: Job(
        "", 0, (PodGroup(pods, Demand(gpus, milli if gpus == 1 else 1000, cpu, 64)),),
        priority=priority, models=models, preemptible=preemptible, within=within, within_required=bool(within),
    ),
    st.integers(0, 8), st.sampled_from([1000, 1000, 500]), st.integers(1, 3), st.sampled_from([0, 1000]),
    st.integers(0, 2), st.sampled_from([(), ("H100",), ("A100",), ("A100", "H100")]), st.booleans(),
    st.sampled_from(["", "leaf"]),
)  # fmt: skip


@given(st.lists(jobs, max_size=10))
@settings(max_examples=examples(40), deadline=None)
def test_an_instance_counts_every_job_once_and_every_gpu(drawn: list[Job]) -> None:
    state = cluster()
    for k, job in enumerate(drawn):
        start(state, Job(**{name: getattr(job, name) for name in job.__struct_fields__} | {"id": f"j{k}"}))
    found = snapshot_of(state)
    check_instance(found.instance, "snapshot")
    in_it = {pod.name.split("/")[0]: pod.node is not None for pod in found.instance.pods}
    assert sorted([*in_it, *found.fixed, *found.left_out]) == sorted(state.ids)
    for name, runs in in_it.items():
        assert runs == (state.rows[name] in state.running)
        assert sum(pod.name.split("/")[0] == name for pod in found.instance.pods) == state.live[state.rows[name]].pods
    held = {name: state.live[state.rows[name]] for name in found.fixed}
    assert all(not job.preemptible or job.groups[0].demand.milli < 1000 for job in held.values())
    for n, node in enumerate(found.instance.nodes):
        used = sum(pod.requests.get("gpu", 0) for pod in found.instance.pods if pod.node == node.name)
        assert node.resources["gpu"] - used == state.table[n, c.IDLE]
    answer = pack(found.instance, limit=0.05)
    assert all(row.after >= 0 for row in answer.priorities)


def test_a_gang_keeps_to_one_model_and_its_level() -> None:
    state = cluster()
    gang = Job(
        "g", 0, (PodGroup(2, Demand(4, 1000, 1000, 64)),), models=("A100", "H100"), within="leaf", within_required=True
    )
    state.apply(JobSubmitted(0, gang))
    first, second = snapshot_of(state).instance.pods
    assert (first.name, second.name, first.group, first.within) == ("g/0", "g/1", "g", "leaf")
    assert first.models == ("A100",) and first.requests == {"gpu": 4, "cpu": 1000, "memory": 64}


def test_a_journal_is_packed_as_of_a_time(tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    lines = [f"j{i},{i * 60},7200,{3 if i % 2 else 5},1,{i % 2}" for i in range(12)]
    table.write_text("\n".join(["id,submit_s,runtime_s,gpus,pods,priority", *lines]) + "\n")
    assert kant("simulate", table, "--cluster", "3x8", "--profile", "fifo", "--out", tmp_path / "run").code == 0
    journal = tmp_path / "run" / "journal.jsonl"
    answer = kant("pack", journal, "--at", "1h", "--json").json()
    assert answer["proven"] and len(answer["placements"]) == 12
    before, after = ([row[key] for row in answer["priorities"]] for key in ("before", "after"))
    assert after == [6, 0] and after > before  # two pods of 3 GPUs on each of three nodes leave 2: none of 5 has room
    assert "--at" in kant("pack", table, "--at", "1h").refusal()
