"""Drive vLLM's scheduler through drawn cells: run by `record_vllm.py`, in the environment that it makes.

Nothing of Kant is imported here. A prompt is made token by token as `kant.serving.recording.prompt_tokens` says.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_CPU_KVCACHE_SPACE="1",
    OMP_NUM_THREADS="1",
)  # fmt: skip

import torch
from recorded_steps import CONSTANTS, LONGEST, OUTPUT_TOKEN, STOP_TOKEN, TINY, prompt_tokens, step_s
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.config.kv_transfer import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16
HOST_BYTES_PER_MS = 25e6
FOREVER = float("inf")


def scheduler(
    folder: str, policy: str, seqs: int, budget: int, blocks: int, caching: bool, size: int = BLOCK,
    ahead: bool = False, drafts: dict[str, Any] | None = None, windows: Sequence[int] = (0,),
    remote: dict[str, tuple[float, int]] | None = None, chunks: int = 0, prompt_only: bool = True,
    role: str = "", failure: str = "recompute", **more: Any,
) -> Any:  # fmt: skip
    """vLLM's scheduler with these settings, further ones by vLLM's names.

    `ahead` makes it asynchronous, `drafts` speculative: `speculative_method` and `num_speculative_tokens`. The model
    has a KV group for each of `windows`: the tokens of its sliding window, 0 for full attention. `remote` makes it
    fetch the KV of these requests' prompts, which takes so many seconds, and fails beyond so many tokens; in the `role`
    of a producer it sends the KV once they have ended. `chunks` is the number of blocks that are offloaded to host
    memory at most, of prompts alone or of outputs too.
    """
    model = ModelConfig(
        model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=LONGEST, seed=0
    )
    plan = SchedulerConfig(
        max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=LONGEST, is_encoder_decoder=False,
        policy=policy, async_scheduling=ahead, **more,
    )  # fmt: skip
    cache = CacheConfig(block_size=size, gpu_memory_utilization=0.9, enable_prefix_caching=caching)
    cache.num_gpu_blocks = blocks
    config = VllmConfig(
        model_config=model, scheduler_config=plan, cache_config=cache, device_config=DeviceConfig(device="cpu")
    )
    config.scheduler_config.async_scheduling = ahead  # vLLM turns it off where it finds no GPU
    if drafts:
        config.speculative_config = speculation(drafts["speculative_method"], drafts["num_speculative_tokens"])
    if remote is not None:
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="Remote", kv_role=role, kv_load_failure_policy=failure
        )
        KVConnectorFactory.create_connector = lambda config, role, kv_cache_config: Remote(
            config, role, kv_cache_config, remote
        )
    if chunks:
        room = chunks * CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT  # a block of this model needs less
        extra = {"cpu_bytes_to_use": room, "offload_prompt_only": prompt_only}
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra
        )
    shape = {"block_size": size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    groups = [
        KVCacheGroupSpec(
            [f"layer {k}"],
            SlidingWindowSpec(**shape, sliding_window=window) if window else FullAttentionSpec(**shape),
        )
        for k, window in enumerate(windows)
    ]
    kv = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    return (AsyncScheduler if ahead else Scheduler)(
        vllm_config=config, kv_cache_config=kv, structured_output_manager=StructuredOutputManager(config),
        block_size=size, hash_block_size=size, log_stats=True,
    )  # fmt: skip


def speculation(method: str, tokens: int) -> Any:
    """vLLM's settings of speculation, without the model of drafts that its constructor wants to load."""
    made = object.__new__(SpeculativeConfig)
    for field in fields(SpeculativeConfig):
        if field.default is not MISSING:
            object.__setattr__(made, field.name, field.default)
    more = {"draft_model_config": SimpleNamespace(hf_config=SimpleNamespace())}
    for name, value in {"method": method, "num_speculative_tokens": tokens, **more}.items():
        object.__setattr__(made, name, value)
    return made


def accepted(seed: int, known: int, drafts: int, rate: float) -> int:
    """How many of some drafts are accepted after `known` tokens of an output: the rule that the recording promises."""
    for count in range(drafts):
        mixed = (seed * 2654435761 + (known + count + 1) * 40503) & 0xFFFFFFFF
        mixed = ((mixed ^ (mixed >> 15)) * 2246822519) & 0xFFFFFFFF
        if ((mixed ^ (mixed >> 13)) & 0xFFFF) >= rate * 65536:
            return count
    return drafts


def asked(row: dict[str, Any], hasher: Any) -> Any:
    """A request of vLLM."""
    program = {"program_id": row["program"]} if "program" in row else None
    params = SamplingParams(
        max_tokens=row.get("most", row["output"]), ignore_eos=True, temperature=0, extra_args=program,
        stop_token_ids=[STOP_TOKEN],
    )  # fmt: skip
    return Request(
        request_id=str(row["id"]), prompt_token_ids=prompt_tokens(row), sampling_params=params, pooling_params=None,
        arrival_time=row["arrival"], priority=row["priority"], block_hasher=hasher,
    )  # fmt: skip


class Remote(KVConnectorBase_V1):
    """A connector through which the KV of whole prompts comes, as from engines that compute prompts alone, or goes."""

    start_load_kv = wait_for_layer_load = save_kv_layer = wait_for_save = lambda self, *_: None

    def __init__(self, config: Any, role: Any, kv: Any, takes: dict[str, tuple[float, int]]) -> None:
        super().__init__(config, role, kv)
        self.takes, self.ends, self.lost, self.now = dict(takes), {}, {}, 0.0
        self.size, self.sends = config.cache_config.block_size, config.kv_transfer_config.kv_role == "kv_producer"

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        comes = request.request_id in self.takes and not self.sends
        count = request.num_prompt_tokens - num_computed_tokens if comes else 0
        return count, count > 0

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        if not self.sends or request.request_id not in self.takes:
            return False, None
        self.ends[request.request_id] = self.now + self.takes.pop(request.request_id)[0]
        return True, None

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            takes, comes = self.takes.pop(request.request_id)
            self.ends[request.request_id] = self.now + takes
            first = max(request.num_prompt_tokens - num_external_tokens, comes) // self.size
            lost = blocks.get_block_ids()[0][first:] if comes < request.num_prompt_tokens else []
            self.lost[request.request_id] = set(lost)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return KVConnectorMetadata()

    def ended(self, now: float, order: list[str]) -> Any:
        """What the worker reports at the end of a batch: which transfers have ended, and which blocks they lack."""
        self.now, found = now, InOrder()
        for name in [*order, *self.ends]:
            if self.ends.get(name, FOREVER) <= now:
                found.add(name)
                del self.ends[name]
        if self.sends:
            return KVConnectorOutput(finished_sending=found) if found else None
        lost = {block for name in found for block in self.lost.pop(name)}
        return KVConnectorOutput(finished_recving=found, invalid_block_ids=lost) if found else None


class InOrder(dict[str, None]):
    """What vLLM keeps in a set, whose order differs from run to run: in the order in which it comes."""

    def add(self, name: str) -> None:
        self[name] = None


class Host:
    """The worker's side of vLLM's offloading: KV moves to and from host memory, in one stream each way.

    A store starts when the batch is computed that fills its blocks. One whose blocks are written to again by a batch
    starts and ends before that batch; so do all stores that vLLM wants flushed.
    """

    def __init__(self, token_ms: float) -> None:
        self.token_ms = token_ms
        self.ends: dict[int, float] = {}
        self.loads: dict[int, str] = {}
        self.stored = self.loaded = self.flushed = 0.0

    def took(self, gpu: Any, size: int) -> float:
        return len(gpu.block_ids) * size * self.token_ms / 1e3

    def before(self, meta: Any, size: int, now: float, free: float) -> float:
        """Start what a batch has to wait for, and loads; returns when the batch may start."""
        for number, job in meta.store_jobs.items():
            if number in meta.jobs_to_flush:
                self.stored = self.ends[number] = max(self.stored, free) + self.took(job.src_spec, size)
        self.flushed = max([self.flushed, *(self.ends.get(number, 0.0) for number in meta.jobs_to_flush)])
        for number, job in meta.load_jobs.items():
            self.loaded = self.ends[number] = max(self.loaded, self.flushed, now) + self.took(job.dst_spec, size)
            self.loads[number] = job.req_id
        return max(free, self.flushed)

    def after(self, meta: Any, size: int, end: float) -> None:
        """Start the stores of a batch that ends then."""
        for number, job in meta.store_jobs.items():
            if number not in meta.jobs_to_flush:
                self.stored = self.ends[number] = max(self.stored, end) + self.took(job.src_spec, size)

    def ended(self, now: float, order: list[str]) -> Any:
        found = [number for number, end in self.ends.items() if end <= now]
        for number in found:
            del self.ends[number]
        meta = OffloadingWorkerMetadata()
        for number in found:
            meta.mark_completed(number)
        loads = {self.loads.pop(number) for number in found if number in self.loads}
        return KVConnectorOutput(finished_recving=loads, kv_connector_worker_meta=meta) if found else None


class Machine:
    """A model that takes `step_s` for a batch, under a virtual clock; batches wait in turn.

    It outputs OUTPUT_TOKEN, and STOP_TOKEN as the last of the tokens that a request is drawn to have. Of a request's
    drafts it accepts as many as `accepted` says, and none of a request that has just been admitted.
    """

    def __init__(
        self, made: Any, outputs: dict[str, int], rate: float, clock: Callable[[float], None], host: Host | None
    ) -> None:
        self.made, self.outputs, self.rate, self.clock, self.host = made, outputs, rate, clock, host
        self.remote: Remote | Host | None = host or made.connector
        self.drafted: DraftTokenIds | None = None
        self.now = self.free = 0.0
        self.steps = 0
        self.queued: Any = None
        self.next_arrival = float("inf")

    def execute_model(self, plan: Any, non_block: bool) -> Any:
        """Start a batch when those before it have ended. Its result is `sample_tokens`'s, as in vLLM."""
        names = list(plan.num_scheduled_tokens)
        moved, start = plan.kv_connector_metadata, max(self.now, self.free)
        if self.host:
            start = self.host.before(moved, self.made.block_size, self.now, start)
        if not names:
            end = max(self.now, self.free)
            if self.host:
                self.host.after(moved, self.made.block_size, end)
            if (
                self.remote and end == self.now and self.remote.ends and not plan.preempted_req_ids
            ):  # it asks again and again
                end = max(end, min([self.next_arrival, *self.remote.ends.values()]))
            return self.result(end, lambda: self.reported(ModelRunnerOutput(req_ids=[], req_id_to_index={})))
        decode, chunks = 0, 0.0
        fresh = {new.req_id for new in plan.scheduled_new_reqs} | plan.scheduled_cached_reqs.resumed_req_ids
        asked: list[tuple[Any, bool, int]] = []
        for name in names:
            request, count = self.made.requests[name], plan.num_scheduled_tokens[name]
            drafts = len(plan.scheduled_spec_decode_tokens.get(name, ()))
            samples = not request.is_prefill_chunk
            ahead = 0
            if self.made.scheduler_config.async_scheduling:
                ahead = request.num_output_placeholders - (1 + drafts if samples else 0)
            if count == 1 + drafts and request.num_output_tokens + ahead > 0:
                decode += request.num_computed_tokens
            else:
                chunks += count * (request.num_computed_tokens - count + count / 2)
            asked.append((request, samples, 0 if name in fresh else drafts))
        self.free = start + step_s(plan.total_num_scheduled_tokens, decode, chunks)
        if self.host:
            self.host.after(moved, self.made.block_size, self.free)
        self.steps += 1
        places = {name: k for k, name in enumerate(names)}
        if self.made.num_spec_tokens:
            self.drafted = DraftTokenIds(names, [[OUTPUT_TOKEN] * self.made.num_spec_tokens for _ in names])

        def output() -> Any:
            tokens = [self.output(*each) for each in asked]
            return self.reported(ModelRunnerOutput(names, places, sampled_token_ids=tokens))

        self.queued = self.result(self.free, output)
        return self.result(self.free, lambda: None)

    def reported(self, output: Any) -> Any:
        """The output, with the loads that have ended by now."""
        if self.remote:
            order = [request.request_id for request in self.made.kv_holding_waiting]  # vLLM has a set
            output.kv_connector_output = self.remote.ended(self.now, order)
        return output

    def output(self, request: Any, samples: bool, drafts: int) -> list[int]:
        """What comes out for a request once all before it is known."""
        known, last = request.num_output_tokens, self.outputs[request.request_id]
        if not samples:
            return []
        count = 1 + accepted(int(request.request_id), known, drafts, self.rate)
        return [STOP_TOKEN if known + k + 1 == last else OUTPUT_TOKEN for k in range(count)]

    def take_draft_token_ids(self) -> Any:
        return self.drafted

    def sample_tokens(self, _: Any, non_block: bool = False) -> Any:
        return self.queued if non_block else self.queued.result()

    def result(self, end: float, output: Callable[[], Any]) -> Any:
        """What a batch comes to; who asks for it waits for its end."""

        def wait() -> Any:
            if end > self.now:
                self.now = end
                self.clock(end)
            return output()

        return SimpleNamespace(result=wait)


def core_of(made: Any, machine: Machine) -> Any:
    """vLLM's engine core around a scheduler: its steps and its queue of batches, without processes and a model."""
    core = object.__new__(EngineCore)
    core.vllm_config, core.scheduler, core.model_executor, core.log_stats = made.vllm_config, made, machine, False
    core.batch_queue_size = made.vllm_config.max_concurrent_batches
    core.batch_queue = deque(maxlen=core.batch_queue_size) if core.batch_queue_size > 1 else None
    core.is_mm_encoder_only = core.is_pooling_model = False
    core.check_for_draft_tokens = made.num_spec_tokens > 0
    core.async_scheduling = core.batch_queue is not None
    core.aborts_queue, core._weight_version = Queue(), None
    core.step_fn = core.step_with_batch_queue if core.async_scheduling else core.step
    return core


def drive(
    made: Any,
    rows: list[dict[str, Any]],
    caching: bool,
    clock: Callable[[float], None] | None = None,
    rate: float = 0.0,
    token_ms: float | None = None,
) -> tuple[int, int]:
    """Serve the requests, and write into their rows what came out; returns steps and preemptions.

    `clock` hears the time before each step and at its end. With one, requests that come during a step are added before
    its end is told, as the simulator does; else after it, as vLLM does. A row's `program`, if it has one, calls. Of
    drafts the share `rate` is accepted. The KV of a token moves to or from host memory in `token_ms`.
    """
    hasher = None
    if caching:
        init_none_hash(sha256)
        hasher = get_request_block_hasher(made.block_size, sha256)
    coming = sorted(rows, key=lambda row: (row["arrival"], row["id"]))
    found = {str(row["id"]): row for row in rows}
    for row in rows:
        row.update(first=None, finish=None, preempted=0, cached=None)
    at, preemptions = 0, 0

    def come(now: float, at_now: bool) -> None:
        nonlocal at
        while at < len(coming) and (coming[at]["arrival"] < now or (at_now and coming[at]["arrival"] == now)):
            made.add_request(asked(coming[at], hasher))
            at += 1

    def ends(now: float) -> None:
        if clock is not None:
            come(now, False)
            clock(now)

    plain = made.schedule

    def schedule(*args: Any, **kwargs: Any) -> Any:
        nonlocal preemptions
        if machine.remote:
            machine.remote.now = machine.now
        plan = plain(*args, **kwargs)
        made.finished_req_ids = InOrder()
        for name in plan.preempted_req_ids or ():
            found[name]["preempted"] += 1
            preemptions += 1
        for new in plan.scheduled_new_reqs:
            if found[new.req_id]["cached"] is None:
                found[new.req_id]["cached"] = new.num_computed_tokens
        return plan

    made.schedule = schedule
    made.finished_req_ids = InOrder()
    host = None if token_ms is None else Host(token_ms)
    machine = Machine(made, {name: row["output"] for name, row in found.items()}, rate, ends, host)
    core = core_of(made, machine)
    while at < len(coming) or made.has_requests() or core.batch_queue:
        if not (made.has_requests() or core.batch_queue):
            machine.now = max(machine.now, coming[at]["arrival"])
        come(machine.now, True)
        if clock is not None:
            clock(machine.now)
        machine.next_arrival = coming[at]["arrival"] if at < len(coming) else float("inf")
        outputs, executed = core.step_fn()
        core.post_step(executed)
        for output in (outputs or {}).values():
            for told in output.outputs:
                row = found[told.request_id]
                if told.new_token_ids and row["first"] is None:
                    row["first"] = machine.now
                if told.finish_reason is not None:
                    row["finish"] = machine.now
    return machine.steps, preemptions


def drafts_of(seed: int) -> dict[str, Any]:
    """Settings of speculation drawn from a cell's number."""
    draw = random.Random(f"drafts {seed}")
    method = draw.choice(["mtp", "mtp", "ngram"])
    if method == "mtp":  # which vLLM's scheduler treats as it does EAGLE
        method = random.Random(f"method {seed}").choice(["mtp", "eagle", "eagle3"])
    return {
        "speculative_method": method, "num_speculative_tokens": draw.randint(1, 5),
        "acceptance": draw.choice([0.0, 0.5, 0.7, 0.9, 1.0]),
    }  # fmt: skip


def windows_of(seed: int) -> list[int]:
    """The KV groups of a model, drawn from a cell's number: with `--hybrid`, of models that slide windows."""
    if "--hybrid" not in sys.argv:
        return [0]
    draw = random.Random(f"windows {seed}")
    window, other = draw.choice([2, 16, 17, 64, 100, 128, 256, 1024]), draw.choice([33, 200, 512])
    return draw.choice([[0, window], [0, window, window], [0] + 5 * [window], [window], [0, 0, window], [window, 0],
                        [0, window, other], [window, other]])  # fmt: skip


def cell(seed: int, folder: str, ahead: bool, drafts: dict[str, Any] | None) -> dict[str, Any]:
    """One cell: settings and requests drawn from its number, every third with little memory."""
    draw = random.Random(seed)
    seqs, budget = draw.choice([4, 16, 64, 128, 200]), draw.choice([256, 512, 2048])
    blocks = draw.choice([160, 260, 420] if seed % 3 == 0 else [300, 800, 3000, 12000])
    rate, policy = draw.choice([3, 8, 20]), draw.choice(["fcfs", "priority"])
    caching, count = draw.random() < 0.5, draw.choice([120, 240, 400])
    budget = max(budget, seqs)
    windows = windows_of(seed)
    prefixes = [draw.randint(16, 700) for _ in range(draw.randint(2, 8))]
    spare = 3 * drafts["num_speculative_tokens"] if drafts else 0
    room, now, rows = (blocks - 1) * BLOCK - spare, 0.0, []
    blocks = (blocks - 1) * len(windows) + 1
    for i in range(count):
        now += draw.expovariate(rate)
        prompt = min(1500, room // 2, max(2, int(draw.lognormvariate(5, 1))))
        output = min(600, room // 2 - 2, max(2, int(draw.lognormvariate(4.5, 0.9))))
        group = draw.randrange(len(prefixes)) if draw.random() < 0.7 else -1
        rows.append(
            {
                "id": i, "arrival": now, "prompt": prompt, "output": output,
                "priority": draw.randint(0, 3) if policy == "priority" else 0, "group": group,
                "prefix": min(prefixes[group], prompt - 1) if group >= 0 else 0,
            }
        )  # fmt: skip
    return recorded(seed, folder, ahead, policy, seqs, budget, blocks, caching, rows, windows, drafts=drafts)


def odd_cell(seed: int, folder: str, ahead: bool, drafts: dict[str, Any] | None) -> dict[str, Any]:
    """A cell of settings that are seldom, and of requests that come at once, with lengths that fill blocks exactly."""
    draw = random.Random(f"odd {seed}")
    size, policy, caching = draw.choice([8, 16, 32, 64]), draw.choice(["fcfs", "priority"]), draw.random() < 0.6
    seqs, blocks = draw.choice([1, 2, 8, 32, 100]), max(draw.choice([1500, 3000, 6000]) // size, 12)
    whole = draw.random() < 0.2  # prompts that are not chunked
    budget = LONGEST if whole else max(draw.choice([64, 200, 512, 2048]), seqs)
    more: dict[str, Any] = {
        "long_prefill_token_threshold": draw.choice([0, 0, 32, 100]), "enable_chunked_prefill": not whole,
        "watermark": draw.choice([0.0, 0.0, 0.01, 0.1]), "scheduler_reserve_full_isl": seqs > 8 or draw.random() < 0.5,
    }  # fmt: skip
    if drafts:
        more["long_prefill_token_threshold"] = 0
    spare = 3 * drafts["num_speculative_tokens"] if drafts else 0
    room, now, rows = (blocks - 1) * size - spare, 0.0, []
    windows = windows_of(seed)
    blocks = (blocks - 1) * len(windows) + 1
    for i in range(160):
        now += draw.choice([0.0, 0.0, draw.expovariate(4)])
        prompt = draw.choice([draw.randint(1, room // 3), size * draw.randint(1, room // size // 3), room // 2])
        output = draw.choice([1, draw.randint(1, 120), max(1, room - prompt) if i % 40 == 0 else 30])
        group = draw.randrange(-1, 3)
        shared = min(size * draw.randint(1, 6), prompt - 1) if group >= 0 else 0
        rows.append(
            {
                "id": i, "arrival": now, "prompt": prompt, "output": min(output, room - prompt),
                "priority": draw.randint(0, 1), "group": group, "prefix": shared,
            }
        )  # fmt: skip
    return recorded(seed, folder, ahead, policy, seqs, budget, blocks, caching, rows, windows, size, drafts, **more)


def recorded(
    seed: int, folder: str, ahead: bool, policy: str, seqs: int, budget: int, blocks: int, caching: bool,
    rows: list[dict[str, Any]], windows: list[int], size: int = BLOCK, drafts: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Serve the requests of a cell, most of which end at a stop token, and note what came out."""
    draw = random.Random(f"most {seed}")
    for row in rows:
        if draw.random() < 0.6:
            row["most"] = row["output"] + draw.randint(1, 400)
    role = ""
    if "--remote" in sys.argv or "--sending" in sys.argv:
        role = "kv_producer" if "--sending" in sys.argv else "kv_consumer"
        for row in rows:
            row["remote_s"] = draw.choice([None, draw.lognormvariate(-3.5, 1)])
        draw = random.Random(f"failing {seed}")
        for row in rows:
            if "--failing" in sys.argv and row["remote_s"] and draw.random() < 0.5:
                row["remote_tokens"] = draw.choice([0, draw.randint(0, row["prompt"])])
    if "--sending" in sys.argv:  # as engines for prompts alone are asked
        for row in rows:
            if draw.random() < 0.7:
                row["output"] = 1
                row.pop("most", None)
    remote = None
    if role:
        remote = {
            str(row["id"]): (row["remote_s"], row.get("remote_tokens", row["prompt"]))
            for row in rows
            if row["remote_s"]
        }
    host, token_ms, failure = {}, None, "fail" if "--fatal" in sys.argv else "recompute"
    if "--offload" in sys.argv:
        draw, caching = random.Random(f"offload {seed}"), True
        host = {
            "host_blocks": draw.choice([blocks // 4, blocks, 3 * blocks]) + 1,
            "kv_bytes": 131072 * draw.choice([1, 4, 30]),
            "offload_prompt_only": draw.random() < 0.5,
        }
        token_ms = host["kv_bytes"] / HOST_BYTES_PER_MS
    made = scheduler(
        folder, policy, seqs, budget, blocks, caching, size, ahead, drafts, windows, remote,
        host.get("host_blocks", 0), host.get("offload_prompt_only", True), role, failure, **more,
    )  # fmt: skip
    began = time.process_time()
    steps, preemptions = drive(made, rows, caching, rate=drafts["acceptance"] if drafts else 0.0, token_ms=token_ms)
    took = time.process_time() - began
    print(
        f"{seed}: {policy}, {len(rows)} requests, {steps} steps, {preemptions} preemptions, {steps / took:,.0f} steps/s"
    )
    return {
        "cell": seed, "policy": policy, "max_num_seqs": seqs, "max_num_batched_tokens": budget, "num_blocks": blocks,
        "block_size": size, "prefix_cache": caching, "steps": steps, "preemptions": preemptions,
        "cpu_s": took, "async_scheduling": ahead, "sliding_windows": windows, "max_model_len": LONGEST,
        "kv_role": role, "kv_load_failure_policy": failure, **host, **(drafts or {}), **more, "requests": rows,
    }  # fmt: skip


def main() -> None:
    first, last, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(TINY))
        make = odd_cell if "--odd" in sys.argv else cell
        drafting = "--drafts" in sys.argv
        cells = [
            make(seed, folder, "--sync" not in sys.argv, drafts_of(seed) if drafting else None)
            for seed in range(first, last)
        ]
    recording = {
        "engine": "vLLM V1: its scheduler and its engine core's queue of batches",
        "latency_ms": "max(F, S*tokens + C) + K*kv_decode + Q*chunk_context + O",
        **CONSTANTS,
        "cells": cells,
    }
    with gzip.open(out, "wt") as file:
        json.dump(recording, file)


if __name__ == "__main__":
    main()
