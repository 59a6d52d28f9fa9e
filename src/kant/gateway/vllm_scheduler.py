"""Kant's policies inside vLLM: classes for `vllm serve --scheduler-cls kant.gateway.vllm_scheduler.Plas`.

vLLM does not call this interface public, and its attributes change between versions: versions other than `KNOWN` are
refused. A policy is called as in the simulator: when a request arrives, before and after each step, and when one ends.
It sees a book: an engine's tables filled from vLLM's scheduler. vLLM's priority queue decides which request waits or
loses blocks, and vLLM's limits decide admission; preemptive policies preempt before each step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import Any

from kant.model.errors import InputError
from kant.serving import columns as c
from kant.serving.engine import Engine, EngineSettings
from kant.serving.latency import latency_model
from kant.serving.policies import policy_named
from kant.serving.policy import Job, Policy

KNOWN = ("0.32",)
"""Versions of vLLM that were tested."""

HOLDING = ("kv_holding_waiting", "skipped_waiting")
"""Other queues of waiting requests, by their names in different versions."""

AT_FIRST = 1024
"""The initial capacity of the book, in requests."""

NO_PROGRAM = -1


def check_version() -> None:
    """Raise InputError if vLLM is absent or its version is unknown."""
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        raise InputError("--scheduler-cls", "vLLM in this environment") from None
    if not version.startswith(tuple(f"{known}." for known in KNOWN)):
        raise InputError("--scheduler-cls", f"vLLM {' or '.join(KNOWN)}, whose scheduler this class extends", version)


def extended(base: type, queue: Callable[[], Any], priority: Any, policy: str) -> type:
    """Return a vLLM scheduler class that uses the policy of that name.

    `base` is vLLM's AsyncScheduler, `queue` creates its priority queue, `priority` is vLLM's name of that policy.
    """

    class KantScheduler(base):  # type: ignore[misc]
        """vLLM's scheduler with a policy of Kant."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.kant: Policy = policy_named(policy)
            self.ordered = self.kant.by_priority or self.kant.preemptive
            if self.ordered:
                self.policy = priority
                self.waiting = queue()
                for name in HOLDING:
                    if hasattr(self, name):
                        setattr(self, name, queue())
            self.max_num_active_reqs: int
            self.slots = self.max_num_active_reqs
            blocks = int(self.kv_cache_config.num_blocks)
            latency = latency_model("llama-3-8b", "a100")[0]  # not used here: real steps of vLLM take their own time
            kind = "priority" if self.ordered else "fcfs"
            settings = EngineSettings(latency, max(blocks, 2), int(self.block_size), self.slots, policy=kind)
            self.book = Engine(settings, AT_FIRST)
            self.book.count = AT_FIRST
            self.free = list(range(AT_FIRST))[::-1]
            self.rows: dict[str, int] = {}
            self.programs: dict[str, int] = {}
            self.came = 0
            self.clock: Callable[[], float] = time.time
            self.began = self.since = self.clock()
            self.under_way = 0
            self.over: list[int] | None = None

        def add_request(self, request: Any) -> None:
            """Add a request with the priority that the policy gives it."""
            if request.request_id not in self.rows:
                row = self.rows[request.request_id] = self.new_row()
                prompt, most = int(request.num_prompt_tokens), int(request.max_tokens)
                now = float(request.arrival_time) - self.began
                self.book.requests[row] = 0
                self.book.requests[row, [c.PROMPT, c.OUTPUT, c.TIE]] = prompt, most, self.came
                self.came += 1
                job = Job(prompt, float(most), float(request.priority), self.program_of(request), now)
                score = self.kant.arrived(self.book, job, row)
                self.book.times[row, [c.ARRIVAL, c.PRIORITY]] = now, score
                if self.ordered:
                    request.priority = score
            super().add_request(request)

        def new_row(self) -> int:
            """Return a free row of the book, which grows if there is none."""
            if not self.free:
                had = self.book.count
                self.book.widen()
                self.book.count = len(self.book.requests)
                self.free = list(range(had, self.book.count))[::-1]
            return self.free.pop()

        def program_of(self, request: Any) -> int:
            """Return the number of the calling program: `vllm_xargs.program_id`."""
            params = getattr(request, "sampling_params", None)
            extra = getattr(params, "extra_args", None) or {}
            program = extra.get("program_id")
            return NO_PROGRAM if program is None else self.programs.setdefault(str(program), len(self.programs))

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            """Schedule a step. Before that, the policy runs, and a preemptive policy preempts requests of worse
            priority.
            """
            if self.kant.by_step:
                self.write_book()
                self.kant.before_step(self.book)
                self.read_priorities()
                admit = int(self.book.state[c.ADMIT])
                if admit >= 0:
                    self.max_num_active_reqs = min(self.slots, len(self.running) + admit)
            taken = self.make_room() if self.kant.preemptive else set()
            output = super().schedule(*args, **kwargs)
            self.max_num_active_reqs = self.slots
            if taken:
                output.preempted_req_ids = (output.preempted_req_ids or set()) | taken
            if output.total_num_scheduled_tokens:
                if not self.under_way:
                    self.since = self.clock()
                self.under_way += 1
            return output

        def make_room(self) -> set[str]:
            """Preempt running requests of worse priority than a waiting one that could be admitted in their place.

            The rule is that of `kant.serving.eviction.make_room`. Returns the ids of the preempted requests.
            """
            pool, size, slots = self.kv_cache_manager.block_pool, int(self.block_size), self.max_num_active_reqs
            usable = self.book.settings.num_blocks - 1
            taken: list[Any] = []
            victims: set[str] = set()
            claimed = 0
            while self.waiting:
                first = self.waiting.peek_request()
                need = claimed + -(-int(first.num_tokens) // size)
                worse = [request for request in self.running if request.priority > first.priority]
                could = min(pool.get_num_free_blocks() + sum(map(self.held, worse)), usable)
                if could < need or len(self.running) + len(taken) - len(worse) >= slots:
                    break
                while len(self.running) + len(taken) >= slots or pool.get_num_free_blocks() < need:
                    worst = max(self.running, key=lambda r: (r.priority, r.arrival_time), default=first)
                    if worst.priority <= first.priority:
                        break
                    self.running.remove(worst)
                    self._preempt_request(worst, time.monotonic())
                    victims.add(worst.request_id)
                if len(self.running) + len(taken) >= slots or pool.get_num_free_blocks() < need:
                    break
                taken.append(self.waiting.pop_request())
                claimed = need
            for request in taken:
                self.waiting.add_request(request)
            return victims

        def held(self, request: Any) -> int:
            """Return the blocks that a request holds."""
            return len(self.kv_cache_manager.get_blocks(request.request_id).blocks[0])

        def waits(self) -> Iterator[Any]:
            """Yield the waiting requests, first those that hold blocks."""
            for name in HOLDING:
                yield from getattr(self, name, ())
            yield from self.waiting

        def write_book(self) -> None:
            """Fill the book from vLLM's scheduler."""
            book, rows = self.book, self.rows
            for place, count, live in (
                (book.running, c.RUNS, [r for r in self.running if r.request_id in rows]),
                (book.waiting, c.WAITS, [r for r in self.waits() if r.request_id in rows]),
            ):
                numbers = [rows[request.request_id] for request in live]
                book.state[count] = len(numbers)
                place[: len(numbers)] = numbers
                book.requests[numbers, c.DONE] = [request.num_output_tokens for request in live]
                book.requests[numbers, c.COMPUTED] = [request.num_computed_tokens for request in live]

        def read_priorities(self) -> None:
            """Copy priorities from the book to vLLM's requests, and reorder those that wait."""
            if not self.ordered:
                return
            for request in self.running:
                self.reprioritised(request)
            waiting = list(self.waiting)
            changed = [request for request in waiting if self.reprioritised(request)]
            if changed:  # the heap is out of order
                self.waiting.remove_requests(waiting)
                for request in waiting:
                    self.waiting.add_request(request)

        def reprioritised(self, request: Any) -> bool:
            """Set a request's priority from the book; return whether it changed."""
            row = self.rows.get(request.request_id)
            if row is None or request.priority == self.book.times[row, c.PRIORITY]:
                return False
            request.priority = float(self.book.times[row, c.PRIORITY])
            return True

        def update_from_output(self, output: Any, *args: Any, **kwargs: Any) -> Any:
            """End a step: tell the policy which requests ran and for how long, and then which ones ended."""
            ran = {self.rows[name]: self.requests[name] for name in output.num_scheduled_tokens if name in self.rows}
            self.over = []
            done = super().update_from_output(output, *args, **kwargs)
            over, self.over = self.over, None
            if output.total_num_scheduled_tokens:
                now = self.clock()
                took, self.since = now - self.since, now
                self.under_way -= 1
                if self.kant.by_step:
                    self.write_book()
                    for row, request in ran.items():  # some of them have ended
                        self.book.requests[row, c.DONE] = request.num_output_tokens
                        self.book.requests[row, c.COMPUTED] = request.num_computed_tokens
                    self.book.plan[: len(ran), 0] = list(ran)
                    self.book.state[c.RAN] = len(ran)
                    self.kant.after_step(self.book, took)
                    self.read_priorities()
            for row in over:
                self.end(row)
            return done

        def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            """End a request: the policy learns its output after it has processed the step."""
            row = self.rows.pop(request.request_id, None)
            if row is not None:
                self.book.requests[row, c.OUTPUT] = self.book.requests[row, c.DONE] = int(request.num_output_tokens)
                if self.over is None:
                    self.end(row)
                else:
                    self.over.append(row)
            return super()._free_request(request, *args, **kwargs)

        def end(self, row: int) -> None:
            """Tell the policy that a request has ended, and free its row."""
            self.kant.finished(self.book, row)
            self.free.append(row)

    KantScheduler.__name__ = KantScheduler.__qualname__ = "".join(map(str.title, policy.split("-")))
    return KantScheduler


CLASSES = {
    "".join(map(str.title, name.split("-"))): name
    for name in (
        "priority", "preemptive-priority", "ranked", "ranked-bounded", "ranked-preemptive", "srpt", "mlfq", "plas",
        "atlas", "conservative", "aggressive", "past-future",
    )
}  # fmt: skip
"""The classes of this module, and their policies: all but `layered-priority`, which acts within a step."""


def __getattr__(name: str) -> type:
    """Create a class when vLLM asks for it by name, so that this module can be imported without vLLM."""
    if name not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_version()
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue

    ordered = SchedulingPolicy.PRIORITY
    made = extended(AsyncScheduler, lambda: create_request_queue(ordered), ordered, CLASSES[name])
    globals()[name] = made
    return made


def __dir__() -> Iterable[str]:
    return [*globals(), *CLASSES]
