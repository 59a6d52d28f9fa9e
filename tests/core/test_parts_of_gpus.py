"""Parts of GPUs that a node has cut itself: a piece says what they are worth, whoever else asks for as much."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples

from kant.cluster.quota_usage import worth_of_parts
from kant.model.job import Demand, Job, PodGroup
from kant.model.placement import MASK, MILLI, PODS
from kant.testing import Harness, make_cluster, make_job

WORTH, CPU = st.sampled_from([125, 500, 1500]), st.sampled_from([1000, 2000])
DEMANDS = st.one_of(
    st.builds(lambda milli, cpu: Demand(0, milli, cpu, 1024, mig=f"part-{milli}"), WORTH, CPU),
    st.builds(lambda cpu: Demand(0, 1000, cpu, 1024), CPU),
    st.just(Demand(1, 1000, 1000, 1024)),
)


def _gang(groups: list[tuple[int, Demand]]) -> Job:
    return replace(make_job("g"), groups=tuple(PodGroup(count, demand) for count, demand in groups))


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), DEMANDS), min_size=1, max_size=4, unique_by=lambda one: one[1]))
def test_pieces_say_what_their_parts_are_worth(groups: list[tuple[int, Demand]]) -> None:
    harness = Harness(make_cluster(4, 4))
    harness.submit(_gang(groups))
    harness.cycle(0)
    state = harness.state
    shape, pieces = state.shape_of(0), state.running[0].tolist()
    asked: dict[int, int] = {}
    for count, demand in groups:
        if not demand.gpus:
            asked[demand.charged_milli] = asked.get(demand.charged_milli, 0) + count
    assert sum(worth_of_parts(shape, one) for one in pieces if not one[MASK]) == shape.charged_milli - shape.gpu_milli
    said: dict[int, int] = {}
    for piece in (one for one in pieces if not one[MASK]):
        assert worth_of_parts(shape, piece) == piece[PODS] * piece[MILLI]
        said[piece[MILLI]] = said.get(piece[MILLI], 0) + piece[PODS]
    assert said == asked


def test_pieces_of_older_journals_are_read_by_their_cpu_and_memory() -> None:
    harness = Harness(make_cluster(4))
    harness.submit(_gang([(2, Demand(0, 125, 1000, 1024, mig="a")), (1, Demand(0, 500, 3000, 1024, mig="b"))]))
    shape = harness.state.shape_of(0)
    assert [worth_of_parts(shape, [0, 2, 0, said, 2000, 2048, -1]) for said in (0, 1000)] == [250, 250]
    assert worth_of_parts(shape, [0, 3, 0, 0, 5000, 3072, -1]) == 750
