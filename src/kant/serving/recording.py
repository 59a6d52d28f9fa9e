"""Recorded runs of vLLM's own scheduler under a virtual clock, and a comparison of the simulated engine with them.

A recording is a JSON file: the latency constants, and cells. A cell is one run: the scheduler's settings, and the
inputs and results of each request. `benchmarks/record_vllm.py` creates recordings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from kant.files import read_bytes
from kant.model.errors import InputError
from kant.serving import columns as c
from kant.serving.columns import Table
from kant.serving.engine import MOST, NO_LIMIT, Engine, EngineSettings
from kant.serving.latency import LatencyModel
from kant.serving.sglang import new_engine

VOCABULARY = 997
"""The number of different tokens in recorded prompts."""

OUTPUT_TOKEN = 5
"""The token that the model of the recorded runs always outputs."""


class RecordedRequest(msgspec.Struct, frozen=True):
    """A request of a recorded run: the first seven fields are inputs, the others results.

    Two requests of a `group` share as many first tokens as the smaller of their `prefix` values. Times are seconds.
    `cached` is the number of tokens in the prefix cache when the request was first scheduled. `most` is vLLM's
    `max_tokens`; if it is absent, it equals `output`. A request with less output ends at a stop token. The KV of a
    prompt with `remote_s` comes from another engine, and takes that many seconds. With `remote_tokens`, only this many
    tokens come; the load of the rest fails.
    """

    id: int
    arrival: float
    prompt: int
    output: int
    priority: int
    group: int
    prefix: int
    first: float | None
    finish: float | None
    preempted: int
    cached: int | None
    most: int | None = None
    remote_s: float | None = None
    remote_tokens: int | None = None


class Cell(msgspec.Struct, frozen=True):
    """One recorded run: the engine's settings, the requests with their results, and counts."""

    cell: int
    policy: Literal["fcfs", "priority", "lof", "lpm", "dfs-weight"]
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int
    prefix_cache: bool
    requests: list[RecordedRequest]
    steps: int | None = None
    preemptions: int | None = None
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    speculative_method: str = "mtp"
    num_speculative_tokens: int = 0
    acceptance: float = 0.0
    sliding_windows: tuple[int, ...] = (0,)
    max_model_len: int = MOST
    kv_role: Literal["", "kv_consumer", "kv_producer"] = ""
    kv_load_failure_policy: Literal["recompute", "fail"] = "recompute"
    host_blocks: int = 0
    offload_prompt_only: bool = True
    kv_bytes: int = 131072
    engine: Literal["vllm", "sglang"] = "vllm"

    @property
    def mode(self) -> str:
        """The scheduler's mode. `kant serve verify` counts agreement by mode."""
        if self.engine == "sglang":
            return f"SGLang, {self.policy}" + (", overlap" if self.async_scheduling else "")
        mode = "asynchronous" if self.async_scheduling else "synchronous"
        mode += f", {self.speculative_method}" if self.num_speculative_tokens else ""
        mode += ", sliding windows" if any(self.sliding_windows) else ""
        mode += ", host memory" if self.host_blocks else ""
        mode += ", loads that fail" if self.kv_load_failure_policy == "fail" else ""
        return mode + {"": "", "kv_consumer": ", KV connector", "kv_producer": ", KV sent"}[self.kv_role]


class Recording(msgspec.Struct, frozen=True):
    """A file of recorded runs. F, S, C, K, Q and O are the constants of the latency, in milliseconds."""

    engine: str
    F: float
    S: float
    C: float
    K: float
    Q: float
    O: float  # noqa: E741 - the file's name for the overhead
    cells: list[Cell]


@dataclass(frozen=True, slots=True)
class Difference:
    """A value in which the engine and the recording differ."""

    cell: int
    request: int
    field: str
    recorded: float | None
    ours: float | None


@dataclass(slots=True)
class Counts:
    """How many runs and requests agree. A request is exact if all its results are bit-identical."""

    cells: int = 0
    cells_exact: int = 0
    requests: int = 0
    exact: int = 0
    preemptions: int = 0
    steps: int = 0

    def json(self) -> dict[str, Any]:
        """Return the counts by name: the object that `kant serve verify --json` prints."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


@dataclass(slots=True)
class Agreement(Counts):
    """The agreement of the engine with a recording, and with the runs of each mode of the scheduler."""

    modes: dict[str, Counts] = field(default_factory=dict)
    first_difference: Difference | None = None


def read_recording(path: Path) -> Recording:
    """Read the recorded runs of a file, plain or gzip. Raises InputError if it has another form."""
    try:
        found = msgspec.json.decode(read_bytes(path), type=Recording)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"a recording of vLLM's scheduler in JSON ({error})") from None
    if not found.cells or not all(cell.requests for cell in found.cells):
        raise InputError(str(path), "at least one run, and in each at least one request")
    for cell in found.cells:
        if len({request.id for request in cell.requests}) < len(cell.requests):
            raise InputError(f"{path}: cell {cell.cell}", "requests with an id each, all different")
        for request in cell.requests:
            if not 0 <= request.prefix <= request.prompt or not request.arrival >= 0:
                raise InputError(
                    f"{path}: cell {cell.cell}: request {request.id}",
                    "an arrival from 0 on and a shared prefix no longer than the prompt",
                    (request.arrival, request.prefix, request.prompt),
                )
    return found


def prompt_tokens(request: RecordedRequest) -> Table:
    """Return the prompt tokens of a recorded request."""
    shared = request.prefix if request.group >= 0 else 0
    theirs = (request.group * 7919 % VOCABULARY + np.arange(shared) * 31) % VOCABULARY + 3
    own = (request.id * 104729 % VOCABULARY + np.arange(request.prompt - shared) * 17 + 5) % VOCABULARY + 3
    return np.concatenate([theirs, own]).astype(np.int64)


def block_contents(tokens: Table, block_size: int, known: dict[tuple[int, bytes], int]) -> list[int]:
    """Return a number for each full block. Equal numbers mean equal tokens up to the block's end. Extends `known`."""
    numbers: list[int] = []
    before = -1
    for end in range(block_size, len(tokens) + 1, block_size):
        key = (before, tokens[end - block_size : end].tobytes())
        before = known.setdefault(key, len(known))
        numbers.append(before)
    return numbers


def replay(recording: Recording, cell: Cell) -> tuple[Engine, dict[int, int]]:
    """Run a cell's requests through the engine. Returns the engine, and its number of each request by id."""
    latency = LatencyModel(recording.F, recording.S, recording.C, recording.K, recording.Q, recording.O, cell.kv_bytes)
    both = EngineSettings.__dataclass_fields__.keys() & set(Cell.__struct_fields__)
    settings = EngineSettings(latency, **{name: getattr(cell, name) for name in both})
    engine = new_engine(settings, len(cell.requests) + 1)
    # On equal priority and arrival, vLLM's heap takes the smaller name, compared as text.
    names = sorted(str(request.id) for request in cell.requests) if cell.policy == "priority" else []
    tie = {name: at for at, name in enumerate(names)}
    known: dict[tuple[int, bytes], int] = {}
    numbers: dict[int, int] = {}
    for request in sorted(cell.requests, key=lambda request: (request.arrival, request.id)):
        settings.check(request.prompt, request.output)
        contents: list[int] = []
        if cell.prefix_cache:
            text = np.concatenate([prompt_tokens(request), np.full(request.output, OUTPUT_TOKEN, dtype=np.int64)])
            contents = block_contents(text, cell.block_size, known)
        engine.run(request.arrival)
        numbers[request.id] = engine.add(
            request.arrival, request.prompt, request.output, request.priority, contents, tie.get(str(request.id)),
            request.output if request.most is None else request.most, request.id, request.remote_s,
            NO_LIMIT if request.remote_tokens is None else request.remote_tokens,
        )  # fmt: skip
    engine.run()
    return engine, numbers


def _differences(cell: Cell, engine: Engine, numbers: dict[int, int]) -> Iterator[Difference]:
    """Yield the first difference of each request that has one."""
    for request in cell.requests:
        r = numbers[request.id]
        first, cached = float(engine.times[r, c.FIRST]), int(engine.requests[r, c.CACHED])
        ours = {
            "first": None if np.isnan(first) else first,
            "finish": float(engine.times[r, c.FINISH]),
            "preempted": int(engine.requests[r, c.PREEMPTED]),
            "cached": cached if cached >= 0 else None,
        }
        for name, value in ours.items():
            recorded = getattr(request, name)
            if value != recorded:
                yield Difference(cell.cell, request.id, name, recorded, value)
                break


def verify(recording: Recording) -> Agreement:
    """Run every cell, and compare first token, finish, preemptions and cached tokens of every request.

    Raises InputError if a cell has settings or requests that the engine rejects.
    """
    total = Agreement()
    for cell in recording.cells:
        try:
            engine, numbers = replay(recording, cell)
        except InputError as error:
            raise InputError(f"cell {cell.cell}: {error.where}", error.expected, error.got) from None
        found = list(_differences(cell, engine, numbers))
        total.first_difference = total.first_difference or next(iter(found), None)
        state, count = engine.state, len(cell.requests)
        run = Counts(1, not found, count, count - len(found), int(state[c.PREEMPTIONS]), int(state[c.STEPS]))
        for counts in (total, total.modes.setdefault(cell.mode, Counts())):
            for each in fields(Counts):
                setattr(counts, each.name, getattr(counts, each.name) + getattr(run, each.name))
    return total
