"""Policies inside vLLM, on a stand-in for its scheduler: the attributes and methods of vLLM 0.32 that are used."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.gateway import vllm_scheduler
from kant.gateway.vllm_scheduler import AT_FIRST, check_version, extended
from kant.model.errors import InputError
from kant.serving import columns as c


@dataclass
class Params:
    extra_args: dict[str, Any] | None = None


@dataclass(eq=False)
class Request:
    """What is used of vLLM's request, and its order: priority, then arrival."""

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    priority: float = 0
    arrival_time: float = 0.0
    sampling_params: Params = field(default_factory=Params)
    num_output_tokens: int = 0
    num_computed_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def __lt__(self, other: Request) -> bool:
        return (self.priority, self.arrival_time) < (other.priority, other.arrival_time)


class Queue:
    """vLLM's PriorityRequestQueue."""

    def __init__(self) -> None:
        self.heap: list[Request] = []

    def __len__(self) -> int:
        return len(self.heap)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self.heap))

    def peek_request(self) -> Request:
        return self.heap[0]

    def add_request(self, request: Request) -> None:
        heapq.heappush(self.heap, request)

    def pop_request(self) -> Request:
        return heapq.heappop(self.heap)

    def remove_requests(self, requests: list[Request]) -> None:
        self.heap = [request for request in self.heap if request not in requests]
        heapq.heapify(self.heap)


@dataclass
class Output:
    num_scheduled_tokens: dict[str, int]
    preempted_req_ids: set[str] | None = None

    @property
    def total_num_scheduled_tokens(self) -> int:
        return len(self.num_scheduled_tokens)


SIZE = 4
"""Tokens of a block."""


class StandIn:
    """A scheduler with some seats and blocks, where each step gives each of those that run a token."""

    def __init__(self, seats: int, blocks: int) -> None:
        self.waiting: Any = Queue()
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self.max_num_active_reqs = seats
        self.block_size = SIZE
        self.kv_cache_config = SimpleNamespace(num_blocks=blocks + 1)
        self.kv_cache_manager = SimpleNamespace(
            block_pool=SimpleNamespace(get_num_free_blocks=self.free_blocks),
            get_blocks=lambda name: SimpleNamespace(blocks=([0] * self.blocks_of(self.requests[name]),)),
        )

    def blocks_of(self, request: Request) -> int:
        return -(-request.num_tokens // SIZE)

    def free_blocks(self) -> int:
        return int(self.kv_cache_config.num_blocks) - 1 - sum(map(self.blocks_of, self.running))

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.add_request(request)

    def _preempt_request(self, request: Request, _: float) -> None:
        request.num_computed_tokens = 0
        self.waiting.add_request(request)

    def _free_request(self, request: Request) -> None:
        self.running.remove(request)
        del self.requests[request.request_id]

    def schedule(self) -> Output:
        while self.free_blocks() < len(self.running):  # as if each would need one
            self._preempt_request(self.running.pop(), 0.0)
        while self.waiting and len(self.running) < self.max_num_active_reqs:
            if self.blocks_of(self.waiting.peek_request()) + len(self.running) >= self.free_blocks():
                break
            self.running.append(self.waiting.pop_request())
        return Output({request.request_id: 1 for request in self.running})

    def update_from_output(self, output: Output) -> None:
        for name in output.num_scheduled_tokens:
            request = self.requests[name]
            request.num_output_tokens += 1
            request.num_computed_tokens = request.num_tokens - 1
            if request.num_output_tokens == request.max_tokens:
                self._free_request(request)


def scheduler(name: str, seats: int, blocks: int = 100) -> Any:
    return extended(StandIn, Queue, "priority", name)(seats, blocks)


def step(made: Any) -> Output:
    output: Output = made.schedule()
    made.update_from_output(output)
    return output


@pytest.mark.parametrize("name", sorted(vllm_scheduler.CLASSES.values()))
@settings(max_examples=examples(50))
@given(
    st.integers(1, 3),
    st.integers(7, 12),
    st.lists(st.tuples(st.integers(1, 6), st.integers(-2, 2), st.none() | st.integers(0, 2)), max_size=12),
)
def test_everybody_is_served_and_the_book_is_right(
    name: str, seats: int, blocks: int, coming: list[tuple[int, int, int | None]]
) -> None:
    made = scheduler(name, seats, 1100 if name == "conservative" else blocks)
    for i, (output, priority, program) in enumerate(coming):
        params = Params(None if program is None else {"program_id": program})
        made.add_request(Request(str(i), 10, output, priority, float(i), params))
        step(made)
    steps = 0
    while made.running or made.waiting:
        assert step(made).num_scheduled_tokens
        steps += 1
        assert steps < 1000
        if made.kant.by_step:
            assert [made.rows[request.request_id] for request in made.running] == [
                *made.book.running[: made.book.state[c.RUNS]]
            ]
            for request in made.requests.values():
                row = made.rows[request.request_id]
                assert made.book.requests[row, c.DONE] == request.num_output_tokens
                assert not made.ordered or made.book.times[row, c.PRIORITY] == request.priority
    assert not made.rows and len(made.free) == AT_FIRST and made.max_num_active_reqs == seats


def test_the_preemptive_class_takes_seats_and_says_whose() -> None:
    made = scheduler("preemptive-priority", 2)
    for i, priority in enumerate((5, 3)):
        made.add_request(Request(str(i), 10, 9, priority, float(i)))
    assert [*step(made).num_scheduled_tokens] == ["1", "0"]
    made.add_request(Request("urgent", 10, 9, 1, 2.0))
    output = step(made)
    assert output.preempted_req_ids == {"0"} and [*output.num_scheduled_tokens] == ["1", "urgent"]
    plain = scheduler("priority", 2)
    for i, priority in enumerate((5, 3, 1)):
        plain.add_request(Request(str(i), 10, 9, priority, float(i)))
        output = step(plain)
    assert output.preempted_req_ids is None and [*output.num_scheduled_tokens] == ["0", "1"]


def test_the_preemptive_class_takes_blocks_only_where_they_suffice() -> None:
    """Ten blocks, of which two that are worse hold three each: who fits into all of them gets them, else nobody."""
    for prompt, preempted in ((13, None), (20, {"1"}), (33, {"0", "1"}), (41, None)):
        made = scheduler("preemptive-priority", 3, 10)
        for i in range(2):
            made.add_request(Request(str(i), 10, 9, 5, float(i)))
        step(made)
        made.add_request(Request("urgent", prompt, 1, 1, 2.0))
        assert made.make_room() == (preempted or set())


def test_a_policy_that_limits_admissions_limits_vllms() -> None:
    """Conservative takes each to say 4,096 tokens: two of them fit, though there are seats for three."""
    made = scheduler("conservative", 3, 2 * (4096 + 10) // SIZE + 1)
    for i in range(3):
        made.add_request(Request(str(i), 10, 2, 0, float(i)))
    assert [[*step(made).num_scheduled_tokens] for _ in range(3)] == [["0", "1"], ["0", "1"], ["2"]]


def test_a_program_that_has_had_much_goes_behind_one_that_has_not() -> None:
    made = scheduler("plas", 1)
    made.add_request(Request("first", 10, 300, 0, 0.0, Params({"program_id": "old"})))
    while made.running or made.waiting:
        step(made)
    made.add_request(Request("runs", 10, 2, 0, 1.0))
    step(made)
    made.add_request(Request("again", 10, 2, 0, 2.0, Params({"program_id": "old"})))
    made.add_request(Request("new", 10, 2, 0, 3.0, Params({"program_id": "new"})))
    order = [[*step(made).num_scheduled_tokens] for _ in range(5)]
    assert order == [["runs"], ["new"], ["new"], ["again"], ["again"]]


def test_the_book_grows_with_those_that_live() -> None:
    made = scheduler("mlfq", 1)
    for i in range(AT_FIRST + 1):
        made.add_request(Request(str(i), 10, 1, 0, float(i)))
    assert [*step(made).num_scheduled_tokens] == ["0"]
    assert len({*made.rows.values()}) == AT_FIRST and made.book.count == 2 * AT_FIRST


def test_other_versions_of_vllm_are_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, works in (("0.32.0", True), ("0.32.1+cpu", True), ("0.33.0", False), ("0.320.0", False)):
        monkeypatch.setattr(metadata, "version", lambda _, version=version: version)
        if works:
            check_version()
        else:
            with pytest.raises(InputError, match=r"expected vLLM 0\.32"):
                check_version()
    monkeypatch.undo()
    with pytest.raises((InputError, ImportError)):  # no vLLM here, or one that cannot be loaded
        vllm_scheduler.Plas  # noqa: B018
    with pytest.raises(AttributeError):
        vllm_scheduler.Nothing  # noqa: B018
