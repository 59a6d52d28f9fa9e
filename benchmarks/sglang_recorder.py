"""Drive SGLang's scheduler through drawn cells: run by `record_vllm.py --sglang`, beside the PyTorch that it installs.

Nothing of Kant is imported here. What runs is SGLang's own loop of events, its overlap of scheduling and computing
unless `--sync` is given, its scheduler and its processing of results, with its radix cache and memory pools on the CPU;
packages that only compute are replaced by empty modules. A prompt is made token by token as
`kant.serving.recording.prompt_tokens` says.
"""

# ruff: noqa: E402  modules that are missing are replaced before they are imported
from __future__ import annotations

import gzip
import importlib.abc
import importlib.machinery
import itertools
import json
import os
import random
import sys
import tempfile
import time
import types
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NO_SCHEDULING = ("IPython", "torchvision", "gguf", "triton", "sgl_kernel", "flashinfer")


class Anything(type):
    """A class that has any attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (Empty,), {})


class Empty:
    """Whatever is no part of scheduling: false, and what it is asked for or called with is nothing either."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty()

    def __call__(self, *given: Any, **__: Any) -> Any:
        return given[0] if given and callable(given[0]) else None

    def __bool__(self) -> bool:
        return False


class EmptyModule(types.ModuleType):
    """A module of which anything can be imported."""

    __path__ = ()  # type: ignore[assignment]
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (Empty,), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module where a package of `NO_SCHEDULING` is not installed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.split(".")[0] in NO_SCHEDULING:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return EmptyModule(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


sys.meta_path.append(Finder())
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from recorded_steps import CONSTANTS, LONGEST, OUTPUT_TOKEN, STOP_TOKEN, TINY, prompt_tokens, step_s
from sglang.srt import runtime_context
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.managers import scheduler as sglang
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache import radix_cache
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm


class Alone:
    """What joins the batches of several ranks: there is one."""

    pending_member_rows = staticmethod(lambda batch: 0)
    maybe_prepare_mlp_sync_batch = staticmethod(lambda batch, need_sync=None: batch)
    maybe_convert_decode_to_extend = prepare_for_forward = staticmethod(lambda batch, **_: batch)

    def __getattr__(self, name: str) -> Any:
        return Empty()


def scheduler(folder: str, policy: str, seqs: int, chunk: int, tokens: int, overlap: bool) -> Any:
    """SGLang's scheduler with these settings, without a model, processes and sockets."""
    given = ServerArgs(
        model_path=folder, device="cpu", skip_tokenizer_init=True, disable_overlap_schedule=not overlap,
        page_size=1, chunked_prefill_size=chunk, schedule_policy=policy, max_running_requests=seqs,
        pp_max_micro_batch_size=seqs,
    )  # fmt: skip
    runtime_context.publish(given, role="scheduler")
    made = object.__new__(sglang.Scheduler)
    rows = ReqToTokenPool(size=seqs, max_context_len=LONGEST, device="cpu", enable_memory_saver=False)
    pool = TokenToKVPoolAllocator(tokens, torch.float32, "cpu", Empty(), False)
    tree = radix_cache.RadixCache(
        CacheInitParams(disable=False, req_to_token_pool=rows, token_to_kv_pool_allocator=pool, page_size=1)
    )
    none = (
        "scheduler_stage_metrics", "metrics_collector", "decode_offload_manager", "hisparse_coordinator",
        "draft_worker", "lora_drainer", "dllm_config", "min_free_slots_delayer", "dynamic_chunk_sizer", "chunked_req",
        "_pending_chunked_abort_req", "truncation_align_size", "last_batch", "max_queued_requests",
    )  # fmt: skip
    no = (
        "enable_priority_scheduling", "enable_lora", "enable_overlap_mlx", "gracefully_exit", "_engine_paused",
        "enable_hierarchical_cache", "enable_hicache_storage", "enable_lmcache", "enable_unified_cache_external_linker",
        "enable_hisparse", "attn_dp_enabled", "require_mlp_sync", "is_hybrid_swa", "is_mixed_chunk",
        "enable_skip_finishing_decode", "schedule_low_priority_values_first", "abort_on_priority_when_disabled",
        "_war_barrier_enabled",
    )  # fmt: skip
    zero = (
        "prefill_decode_interval", "_prefill_decode_interval_remaining", "prefill_decode_interval_min_bs",
        "priority_scheduling_preemption_threshold", "processed_tokens_counter", "max_prefill_bs", "forward_ct",
    )  # fmt: skip
    made.__dict__.update(dict.fromkeys(none), **dict.fromkeys(no, False), **dict.fromkeys(zero, 0))
    made.__dict__.update(
        req_to_token_pool=rows, token_to_kv_pool_allocator=pool, tree_cache=tree, page_size=1, device="cpu",
        model_config=ModelConfig.from_server_args(given), spec_algorithm=SpeculativeAlgorithm.from_string(None),
        dp_attn_adapter=Alone(), ngram_embedding_manager=Alone(), beam_coordinator=Alone(), grammar_manager=Empty(),
        load_inquirer=Empty(), metrics_reporter=SimpleNamespace(
            num_generated_tokens=0, num_retracted_reqs=0, enable_metrics=False, forward_ct_decode=0,
            report_decode_stats=Empty(), report_prefill_stats=Empty(), log_decode_stats_every_iteration=Empty(),
        ),
        schedule_policy=policy, max_prefill_tokens=given.max_prefill_tokens, chunked_prefill_size=chunk,
        max_running_requests=seqs, waiting_queue=[], running_batch=ScheduleBatch(reqs=[], batch_is_full=False),
        enable_overlap=overlap, is_generation=True, disaggregation_mode=sglang.DisaggregationMode.NULL,
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(attn_backend=object(), prefill_aware_swa=False)),
    )  # fmt: skip
    made.init_schedule_policy()
    made.batch_result_processor = SchedulerBatchResultProcessor(
        is_generation=True, enable_overlap=overlap, enable_overlap_mlx=False, decode_offload_manager=None,
        hisparse_coordinator=None, metrics_collector=None, draft_worker=None, model_worker=None,
        logprob_result_processor=Empty(), output_streamer=Empty(), abort_request=None,
        **{name: getattr(made, name) for name in (
            "disaggregation_mode", "model_config", "token_to_kv_pool_allocator", "tree_cache", "req_to_token_pool",
            "metrics_reporter", "beam_coordinator",
        )},
    )  # fmt: skip
    return made


def asked(row: dict[str, Any]) -> Any:
    """A request of SGLang."""
    params = SamplingParams(max_new_tokens=row.get("most", row["output"]), temperature=0, stop_token_ids=[STOP_TOKEN])
    params.normalize(None)
    return Req(str(row["id"]), "", array("q", prompt_tokens(row)), params, vocab_size=1024, eos_token_ids={2})


class Machine:
    """What SGLang's loop of events asks for: requests that come, and a model that takes `step_s` for a batch.

    A request outputs OUTPUT_TOKEN, and STOP_TOKEN as the last of the tokens that it is drawn to have.
    """

    def __init__(self, made: Any, rows: list[dict[str, Any]]) -> None:
        self.made, self.now, self.free, self.steps, self.vain = made, 0.0, 0.0, 0, 0
        self.coming = sorted(rows, key=lambda row: (-row["arrival"], -row["id"]))
        self.rows = {str(row["id"]): row for row in rows}
        for name in ("ingest_requests", "run_batch", "process_batch_result", "on_idle"):
            setattr(made, name, getattr(self, name))

    def ingest_requests(self) -> None:
        while self.coming and self.coming[-1]["arrival"] <= self.now:
            self.made.waiting_queue.append(asked(self.coming.pop()))

    def on_idle(self) -> None:
        if self.made.waiting_queue or self.made.running_batch.reqs or self.made.chunked_req:
            self.vain += 1
            if self.vain > 3:
                raise RuntimeError("requests wait for an engine that runs nothing")
            return
        self.made.new_token_ratio_tracker.reset()
        if self.coming:
            self.now = max(self.now, self.coming[-1]["arrival"])
        self.made.gracefully_exit = not self.coming

    def run_batch(self, batch: Any) -> Any:
        """Start a batch when the one before it has ended; who asks for its result waits for its end."""
        tokens, decode, chunks = len(batch.reqs), 0, 0.0
        if batch.forward_mode.is_decode():
            decode = int(batch.seq_lens_cpu.sum())
        else:
            tokens = 0
            for request in batch.reqs:
                count = request.extend_end - request.prefix_len
                chunks += count * (request.prefix_len + count / 2)
                tokens += count
                if self.rows[request.rid]["cached"] is None:
                    self.rows[request.rid]["cached"] = request.prefix_len
        end = self.free = max(self.now, self.free) + step_s(tokens, decode, chunks)
        self.steps, self.vain = self.steps + 1, 0
        reqs, result = list(batch.reqs), GenerationBatchResult(logits_output=None, next_token_ids=None)

        def synchronize() -> None:
            self.now = max(self.now, end)
            last = [len(request.output_ids) + 1 == self.rows[request.rid]["output"] for request in reqs]
            result.next_token_ids = torch.tensor([STOP_TOKEN if ends else OUTPUT_TOKEN for ends in last])

        result.copy_done = SimpleNamespace(synchronize=synchronize)
        return result

    def process_batch_result(self, batch: Any, result: Any) -> None:
        processor = self.made.batch_result_processor
        decodes = batch.forward_mode.is_decode()
        (processor.process_batch_result_decode if decodes else processor.process_batch_result_prefill)(batch, result)
        for request in batch.reqs:
            row = self.rows[request.rid]
            row["preempted"] = request.retraction_count
            if request.output_ids and row["first"] is None:
                row["first"] = self.now
            if request.finished() and row["finish"] is None:
                row["finish"] = self.now


def drive(made: Any, rows: list[dict[str, Any]]) -> tuple[int, int]:
    """Serve the requests, and write into their rows what came out; returns steps and retractions."""
    for row in rows:
        row.update(first=None, finish=None, preempted=0, cached=None)
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)), perf_counter=lambda: 0.0)  # no two are equal
    radix_cache.time = clock
    machine = Machine(made, rows)
    (made.event_loop_overlap if made.enable_overlap else made.event_loop_normal)()
    return machine.steps, sum(row["preempted"] for row in rows)


def cell(seed: int, folder: str) -> dict[str, Any]:
    """One cell: settings and requests drawn from its number, every second with little memory; `--odd`: hardly any."""
    odd = "--odd" in sys.argv
    draw = random.Random(f"sglang odd {seed}" if odd else f"sglang {seed}")
    policies = ["lof", "dfs-weight"] if "--orders" in sys.argv else ["lpm", "fcfs"]
    policy, seqs, chunk = draw.choice(policies), draw.choice([1, 4, 16, 64]), draw.choice([64, 256, 512, 2048])
    tokens = draw.choice([1500, 3000, 5000] if seed % 2 == 0 else [8000, 40000])
    rate, count = draw.choice([3, 8, 20]), draw.choice([80, 160])
    mean, long = draw.choice([4, 5.5]), 5.0
    if odd:
        tokens, seqs, chunk = draw.choice([400, 800, 1500]), draw.choice([16, 64]), draw.choice([16, chunk])
        mean, long, rate = draw.choice([4, 5]), draw.choice([2.0, 3.0]), 40
    prefixes = [draw.randint(2, 500) for _ in range(draw.randint(2, 8))]
    now, rows = 0.0, []
    for i in range(count):
        now += draw.choice([0.0, draw.expovariate(rate)])
        prompt = min(1500, tokens // 3, max(2, int(draw.lognormvariate(long, 1))))
        output = min(tokens // 3 - 2, max(1, int(draw.lognormvariate(mean, 0.9))))
        group = draw.randrange(len(prefixes)) if draw.random() < 0.7 else -1
        rows.append(
            {
                "id": i, "arrival": now, "prompt": prompt, "output": output, "priority": 0, "group": group,
                "prefix": min(prefixes[group], prompt - 1) if group >= 0 else 0,
            }
        )  # fmt: skip
        if draw.random() < 0.6:
            rows[-1]["most"] = min(output + draw.randint(1, 10 if odd else 400), tokens - prompt - 2)
    overlap = "--sync" not in sys.argv
    made = scheduler(folder, policy, seqs, chunk, tokens, overlap)
    began = time.process_time()
    steps, retractions = drive(made, rows)
    took = time.process_time() - began
    print(f"{seed}: {policy}, {count} requests, {steps} steps, {retractions} retractions, {steps / took:,.0f} steps/s")
    return {
        "cell": seed, "engine": "sglang", "async_scheduling": overlap, "policy": policy, "max_num_seqs": seqs,
        "max_num_batched_tokens": chunk,
        "num_blocks": tokens + 1, "block_size": 1, "prefix_cache": True, "steps": steps, "preemptions": retractions,
        "max_model_len": LONGEST, "requests": rows,
    }  # fmt: skip


def main() -> None:
    first, last, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(TINY))
        cells = [cell(seed, folder) for seed in range(first, last)]
    recording = {
        "engine": "SGLang 0.5.23: its scheduler, radix cache and memory pools",
        "latency_ms": "max(F, S*tokens + C) + K*kv_decode + Q*chunk_context + O",
        **CONSTANTS,
        "cells": cells,
    }
    with gzip.open(out, "wt") as file:
        json.dump(recording, file)


if __name__ == "__main__":
    main()
