"""The bound of the study of packing lies above whatever is packed, and below what is asked and what there is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.model.node import ClusterSpec, Node
from kant.workload.read import read_workload

pytest.importorskip("ortools")

Pods = list[tuple[int, int, int, int, str]]
"""GPUs, thousandths of each, cores, GiB and the GPU model."""
MODELS = st.sampled_from(["", "P100", "T4"])
AMOUNTS = st.integers(0, 9)
PODS = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 4), st.just(1000), AMOUNTS, AMOUNTS, MODELS),
        st.tuples(st.just(1), st.sampled_from([200, 350, 600, 810]), AMOUNTS, AMOUNTS, MODELS),
    ),
    min_size=1,
    max_size=8,
)
Nodes = list[tuple[int, str, int, int]]
NODES = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(["P100", "T4"]), st.integers(0, 20), st.integers(0, 20)),
    min_size=1,
    max_size=4,
)


def bound(folder: Path, pods: Pods, nodes: Nodes) -> float:
    from benchmarks.studies.packing_bound import most_allocated

    lines = ["workload,name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"]
    lines += [f"w,p{i},{1000 * c},{1024 * m},{g},{s},{model}" for i, (g, s, c, m, model) in enumerate(pods)]
    file = folder / "pods.csv"
    file.write_text("\n".join(lines) + "\n")
    spec = tuple(Node(f"n{i}", g, model, 1000 * c, 1024 * m) for i, (g, model, c, m) in enumerate(nodes))
    return most_allocated(read_workload(file, format="openb", slice="w"), ClusterSpec("drawn", spec))


def first_fit(pods: Pods, nodes: Nodes) -> int:
    """The thousandths that are allocated where each pod takes the first node that has room."""
    free = [[[1000] * g, model, c, m] for g, model, c, m in nodes]
    allocated = 0
    for gpus, share, cores, memory, model in pods:
        for node in free:
            devices = [i for i, amount in enumerate(node[0]) if amount >= share][:gpus]
            if len(devices) == gpus and model in ("", node[1]) and node[2] >= cores and node[3] >= memory:
                for i in devices:
                    node[0][i] -= share
                node[2], node[3] = node[2] - cores, node[3] - memory
                allocated += gpus * share
                break
    return allocated


@given(PODS, NODES)
def test_no_packing_is_above_the_bound(tmp_path_factory: pytest.TempPathFactory, pods: Pods, nodes: Nodes) -> None:
    found = bound(tmp_path_factory.getbasetemp(), pods, nodes)
    assert first_fit(pods, nodes) / 1000 <= found + 1e-6
    fitting = [pod for pod in pods if first_fit([pod], nodes)]
    assert found <= sum(pod[0] * pod[1] for pod in fitting) / 1000 + 0.5, "what fits nowhere alone counts for nothing"
    assert found <= sum(gpus for gpus, *_ in nodes) + 0.5


def test_the_bound_knows_that_shares_leave_gaps_and_models_are_bound(tmp_path: Path) -> None:
    """Of four shares of 600 two GPUs take two; of three pods bound to the one P100 it takes one."""
    shares: Pods = [(1, 600, 0, 0, "")] * 4
    assert 1.2 - 1e-6 <= bound(tmp_path, shares, [(2, "T4", 9, 9)]) < 1.2 + 0.5
    whole: Pods = [(1, 1000, 0, 0, "P100")] * 3
    nodes: Nodes = [(1, "P100", 9, 9), *[(4, "T4", 9, 9)] * 8]
    assert Counter(model for _, model, *_ in nodes)["P100"] == 1
    assert bound(tmp_path, whole, nodes) == pytest.approx(1)
