"""Policies inside vLLM, on a stand-in for its scheduler: the attributes and methods of vLLM 0.32 that are used."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.gateway import vllm_scheduler
from kant.gateway.vllm_scheduler import AT_ONCE, check_version, extended
from kant.model.errors import InputError


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

    def __lt__(self, other: Request) -> bool:
        return (self.priority, self.arrival_time) < (other.priority, other.arrival_time)


class Queue:
    """vLLM's PriorityRequestQueue."""

    def __init__(self) -> None:
        self.heap: list[Request] = []

    def __len__(self) -> int:
        return len(self.heap)

    def peek_request(self) -> Request:
        return self.heap[0]

    def add_request(self, request: Request) -> None:
        heapq.heappush(self.heap, request)

    def pop_request(self) -> Request:
        return heapq.heappop(self.heap)


@dataclass
class Output:
    scheduled: list[str]
    preempted_req_ids: set[str] | None = None


class StandIn:
    """A scheduler with some seats, where each step gives each of those that run a token."""

    def __init__(self, seats: int) -> None:
        self.waiting: Any = None
        self.running: list[Request] = []
        self.max_num_running_reqs = seats

    def add_request(self, request: Request) -> None:
        self.waiting.add_request(request)

    def _preempt_request(self, request: Request, _: float) -> None:
        self.waiting.add_request(request)

    def _free_request(self, request: Request) -> None:
        self.running.remove(request)

    def schedule(self) -> Output:
        while self.waiting and len(self.running) < self.max_num_running_reqs:
            self.running.append(self.waiting.pop_request())
        output = Output([request.request_id for request in self.running])
        for request in list(self.running):
            request.num_output_tokens += 1
            if request.num_output_tokens == request.max_tokens:
                self._free_request(request)
        return output


def scheduler(name: str, seats: int) -> Any:
    return extended(StandIn, Queue, "priority", name)(seats)


@pytest.mark.parametrize("name", sorted(vllm_scheduler.CLASSES.values()))
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(1, 6), st.integers(-2, 2), st.none() | st.integers(0, 2)), max_size=15),
)
def test_everybody_is_served_and_nothing_is_left_behind(
    name: str, seats: int, coming: list[tuple[int, int, int | None]]
) -> None:
    made = scheduler(name, seats)
    for i, (output, priority, program) in enumerate(coming):
        params = Params(None if program is None else {"program_id": program})
        made.add_request(Request(str(i), 10, output, priority, float(i), params))
        made.schedule()
    while made.running or made.waiting:
        assert made.schedule().scheduled
    assert not made.rows and len(made.free) == AT_ONCE


def test_the_preemptive_class_takes_seats_and_says_whose() -> None:
    made = scheduler("preemptive-priority", 2)
    for i, priority in enumerate((5, 3)):
        made.add_request(Request(str(i), 10, 9, priority, float(i)))
    assert made.schedule().scheduled == ["1", "0"]
    made.add_request(Request("urgent", 10, 9, 1, 2.0))
    output = made.schedule()
    assert output.preempted_req_ids == {"0"} and output.scheduled == ["1", "urgent"]
    plain = scheduler("priority", 2)
    for i, priority in enumerate((5, 3, 1)):
        plain.add_request(Request(str(i), 10, 9, priority, float(i)))
        output = plain.schedule()
    assert output.preempted_req_ids is None and output.scheduled == ["0", "1"]


def test_a_program_that_has_had_much_goes_behind_one_that_has_not() -> None:
    made = scheduler("plas", 1)
    made.add_request(Request("first", 10, 300, 0, 0.0, Params({"program_id": "old"})))
    while made.running or made.waiting:
        made.schedule()
    made.add_request(Request("runs", 10, 2, 0, 1.0))
    made.schedule()
    made.add_request(Request("again", 10, 2, 0, 2.0, Params({"program_id": "old"})))
    made.add_request(Request("new", 10, 2, 0, 3.0, Params({"program_id": "new"})))
    order = [made.schedule().scheduled for _ in range(5)]
    assert order == [["runs"], ["new"], ["new"], ["again"], ["again"]]


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
