"""Wait or place: both starts come true on the timeline, and the words say what the numbers say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.model.job import Level
from kant.model.node import ClusterSpec, Node
from kant.model.units import FOREVER, HOUR, MINUTE
from kant.placement.calendar.calendar import Calendar
from kant.placement.cost.communication import FULL
from kant.placement.cost.slowdown import Slowdowns
from kant.placement.cost.wait_or_place import Choice, wait_or_place
from kant.testing import make_job


def leaves(*names: str) -> ClusterSpec:
    """A node of 4 GPUs in each leaf that is named."""
    return ClusterSpec("leaves", tuple(Node(f"n{i}", 4, leaf=name) for i, name in enumerate(names)))


class Queue:
    """A cluster on which each node is taken for so many microseconds."""

    def __init__(self, spec: ClusterSpec, taken: list[int]) -> None:
        self.state = ClusterState(spec)
        self.slowdowns = Slowdowns(self.state)
        self.calendar = Calendar(self.state.empty, self.state.table, self.state.shapes)
        whole = self.shape(make_job("whole", 4))
        for node, end in enumerate(taken):
            if end:
                found = self.calendar.earliest(whole, FOREVER, 0)
                assert found is not None
                rows = found[1].copy()
                rows[:, 0] = node
                self.calendar.add(node, rows, 0, end)

    def shape(self, job: object) -> Shape:
        return self.state.shapes.of(job)  # type: ignore[arg-type]

    def ask(self, work: int, level: Level = "leaf", pods: int = 8) -> Choice:
        return wait_or_place(self.calendar, self.slowdowns, make_job("j", 1, pods), level, work, 0)


def test_a_long_job_waits_for_one_leaf_and_a_short_one_does_not() -> None:
    """Nodes 0, 2 and 3 are free, each in a leaf of its own; node 1, beside node 0, is taken for 12 minutes."""
    queue = Queue(leaves("a", "a", "b", "c"), [0, 12 * MINUTE, 0, 0])
    short, long = queue.ask(HOUR), queue.ask(100 * HOUR)
    assert short.anywhere is not None and short.near is not None
    assert (short.near.start, short.near.slowdown, short.near.nodes) == (12 * MINUTE, FULL, 2)
    assert (short.anywhere.start, short.anywhere.slowdown, short.anywhere.leaves) == (0, 1017, 2)
    assert (short.wait, long.wait) == (False, True)
    assert str(short) == "12m more for one leaf, or now over 2 leaves, 1.7 % slower: waiting ends 10m 58s later"
    assert str(long) == "12m more for one leaf, or now over 2 leaves, 1.7 % slower: waiting ends 1h 30m sooner"


@pytest.mark.parametrize(
    ("names", "taken", "wait", "words"),
    [
        ("aab", [0, 0, 0], True, "now over 2 nodes of one leaf: no reason to wait"),
        ("abc", [0, 0, 0], False, "now over 2 leaves; one leaf is never free for it"),
        ("ab", [FOREVER, 0], False, "no start can be foreseen"),
    ],
)
def test_where_there_is_nothing_to_choose(names: str, taken: list[int], wait: bool, words: str) -> None:
    choice = Queue(leaves(*names), taken).ask(HOUR)
    assert (choice.wait, str(choice)) == (wait, words)


@given(
    st.lists(st.sampled_from("ab"), min_size=3, max_size=6),
    st.lists(st.sampled_from((0, 1, 5, 40)), min_size=6, max_size=6),
    st.integers(1, 1000),
    st.integers(2, 12),
)
def test_the_choice_is_by_the_end_and_one_leaf_is_one_leaf(
    names: list[str], taken: list[int], work: int, pods: int
) -> None:
    queue = Queue(leaves(*names), [end * MINUTE for end in taken[: len(names)]])
    choice = queue.ask(work * MINUTE, pods=pods)
    near, anywhere = choice.near, choice.anywhere
    if near is None or anywhere is None:
        assert choice.wait == (near is not None)
        return
    assert near.leaves == 1
    assert choice.wait == (near.end <= anywhere.end)
    for seat in (near, anywhere):
        assert seat.end - seat.start == -(-work * MINUTE * seat.slowdown // FULL)
