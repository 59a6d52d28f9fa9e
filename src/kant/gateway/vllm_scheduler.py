"""Kant's policies inside vLLM: classes for `vllm serve --scheduler-cls kant.gateway.vllm_scheduler.Plas`.

vLLM calls this interface not public, and its attributes change between versions: other versions than `KNOWN` are
refused in one sentence. A policy says a request's priority when it comes; vLLM's own priority queue then orders who
waits and who loses blocks. Preemptive policies take seats from the worse before each step, as the simulator does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

from kant.model.errors import InputError
from kant.serving import columns as c
from kant.serving.engine import Engine, EngineSettings
from kant.serving.latency import latency_model
from kant.serving.policies import policy_named
from kant.serving.policy import Job, Policy

KNOWN = ("0.32",)
"""Versions of vLLM with which this was tried."""

HOLDING = ("kv_holding_waiting", "skipped_waiting")
"""Further queues of requests that wait, by their names in different versions."""

AT_ONCE = 16_384
"""Requests that may live at once; further ones have priority 0."""

NOBODY = -1


def check_version() -> None:
    """Raise InputError where vLLM is absent or another than those that are known."""
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        raise InputError("--scheduler-cls", "vLLM in this environment") from None
    if not version.startswith(tuple(f"{known}." for known in KNOWN)):
        raise InputError("--scheduler-cls", f"vLLM {' or '.join(KNOWN)}, whose scheduler this class extends", version)


def extended(base: type, queue: Callable[[], Any], priority: Any, policy: str) -> type:
    """A scheduler of vLLM's that asks the policy of that name.

    `base` is vLLM's AsyncScheduler, `queue` makes its priority queue, `priority` is its name of that policy.
    """

    class KantScheduler(base):  # type: ignore[misc]
        """vLLM's scheduler with the priorities of a policy of Kant."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.policy = priority
            self.waiting = queue()
            for name in HOLDING:
                if hasattr(self, name):
                    setattr(self, name, queue())
            self.kant: Policy = policy_named(policy)
            self.book = Engine(EngineSettings(latency_model("llama-3-8b", "a100")[0], 2), AT_ONCE)
            self.free = list(range(AT_ONCE))[::-1]
            self.rows: dict[str, int] = {}
            self.programs: dict[str, int] = {}
            self.began = time.time()

        def add_request(self, request: Any) -> None:
            """A request comes: the policy says its priority."""
            if self.free and request.request_id not in self.rows:
                row = self.rows[request.request_id] = self.free.pop()
                prompt, most = int(request.num_prompt_tokens), int(request.max_tokens)
                self.book.requests[row] = 0
                self.book.requests[row, c.PROMPT] = prompt
                now = float(request.arrival_time) - self.began
                job = Job(prompt, float(most), float(request.priority), self.program_of(request), now)
                request.priority = self.kant.arrived(self.book, job, row)
            super().add_request(request)

        def program_of(self, request: Any) -> int:
            """The number of the program that calls: `vllm_xargs.program_id`."""
            params = getattr(request, "sampling_params", None)
            extra = getattr(params, "extra_args", None) or {}
            program = extra.get("program_id")
            return NOBODY if program is None else self.programs.setdefault(str(program), len(self.programs))

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            """A step; before it a preemptive policy takes seats from the worse."""
            taken = self.take_seats() if self.kant.preemptive else set()
            output = super().schedule(*args, **kwargs)
            if taken:
                output.preempted_req_ids = (output.preempted_req_ids or set()) | taken
            return output

        def take_seats(self) -> set[str]:
            """Preempt who runs at a worse priority than somebody who waits, where all seats are taken."""
            taken: set[str] = set()
            while self.waiting and len(self.running) >= self.max_num_running_reqs:
                first = self.waiting.peek_request()
                worst = max(self.running, key=lambda r: (r.priority, r.arrival_time))
                if worst.priority <= first.priority:
                    break
                self.running.remove(worst)
                self._preempt_request(worst, time.monotonic())
                taken.add(worst.request_id)
            return taken

        def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            """A request is over: the policy learns what it has had."""
            row = self.rows.pop(request.request_id, None)
            if row is not None:
                self.book.requests[row, c.OUTPUT] = int(request.num_output_tokens)
                self.kant.finished(self.book, row)
                self.free.append(row)
            return super()._free_request(request, *args, **kwargs)

    KantScheduler.__name__ = KantScheduler.__qualname__ = "".join(map(str.title, policy.split("-")))
    return KantScheduler


CLASSES = {
    "Priority": "priority",
    "PreemptivePriority": "preemptive-priority",
    "Ranked": "ranked",
    "RankedBounded": "ranked-bounded",
    "Plas": "plas",
    "Atlas": "atlas",
}
"""Classes of this module, and the policies that they ask."""


def __getattr__(name: str) -> type:
    """A class when vLLM asks for it by name, so that this module can be imported without vLLM."""
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
