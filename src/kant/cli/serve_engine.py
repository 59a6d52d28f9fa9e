"""Options of several verbs of `kant serve`: the engine's setup."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import numbers, whole
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.serving.engine import EngineSettings


@Parameter(name="*")
@dataclass(frozen=True)
class EngineOptions:
    """How each engine is set up."""

    model: Annotated[str, Parameter(help="The model (see `kant serve policies`).")] = "llama-3-8b"
    gpu: Annotated[str, Parameter(help="The GPU that serves it.")] = "a100"
    tensor_parallel: Annotated[
        int | None, Parameter(help="GPUs of one engine. Default: the fewest in the table.", converter=whole)
    ] = None
    latency: Annotated[
        Path | None, Parameter(help="The engine's latency: a file that `kant serve fit` has written.")
    ] = None
    blocks: Annotated[
        int | None, Parameter(help="KV blocks of an engine. Default: as many as its memory holds.", converter=whole)
    ] = None
    block_size: Annotated[int, Parameter(help="Tokens of a KV block.", converter=whole)] = 16
    max_seqs: Annotated[
        int, Parameter(help="The largest number of requests that an engine runs at once.", converter=whole)
    ] = 128
    max_tokens: Annotated[int, Parameter(help="The largest number of tokens in a step.", converter=whole)] = 2048
    prefix_cache: Annotated[bool, Parameter(help="Cache blocks of common prefixes of prompts.")] = True
    async_scheduling: Annotated[
        bool,
        Parameter(help="Plan each step while the one before is computed, the engines' default; else after it."),
    ] = True
    speculative_tokens: Annotated[
        int, Parameter(help="Tokens drafted for each request and step; 0: no speculation.", converter=whole)
    ] = 0
    speculative_method: Annotated[
        str | None, Parameter(help="The method that drafts them: mtp, eagle, eagle3 or ngram. Default: mtp.")
    ] = None
    acceptance: Annotated[
        float | None,
        Parameter(help="The chance that a draft is accepted, if those before it are. Default: 0.7."),
    ] = None
    sliding_windows: Annotated[
        str, Parameter(help="The window of each KV group in tokens, 0 for full attention: 128,0 for gpt-oss.")
    ] = "0"
    engine: Annotated[
        str, Parameter(help="The engine's scheduler: vllm, or sglang, also with a schedule policy: sglang-lpm.")
    ] = "vllm"
    kv_offloading_size: Annotated[
        float, Parameter(help="GiB of host memory to which an engine offloads KV blocks, as vLLM does.")
    ] = 0.0
    swap: Annotated[
        bool,
        Parameter(help="Swap the KV of preempted requests to host memory, instead of computing it again.", negative=""),
    ] = False


ENGINE = EngineOptions()

OPTIONS = {
    "num_blocks": "--blocks",
    "block_size": "--block-size",
    "max_num_seqs": "--max-seqs",
    "max_num_batched_tokens": "--max-tokens",
    "speculative_method": "--speculative-method",
    "num_speculative_tokens": "--speculative-tokens",
    "acceptance": "--acceptance",
    "sliding_windows": "--sliding-windows",
    "host_blocks": "--kv-offloading-size",
    "prefix_cache": "--prefix-cache",
    "swap": "--swap",
}
"""The options by the names of their settings in vLLM, for messages."""


def engine_settings(options: EngineOptions) -> EngineSettings:
    """Return the settings of an engine; raises InputError if they are invalid."""
    from kant.serving.engine import ENGINES, EngineSettings
    from kant.serving.fit import read_latency
    from kant.serving.latency import kv_tokens, latency_model

    if options.latency is not None:
        found = read_latency(options.latency)
        latency, tokens = found.latency, found.kv_tokens
        if options.blocks is None and not tokens:
            raise InputError("--blocks", f"a number, as {options.latency} does not say how many tokens fit", "none")
    else:
        latency, degree = latency_model(options.model, options.gpu, options.tensor_parallel)
        tokens = kv_tokens(options.model, options.gpu, degree)
    if options.block_size < 1:
        raise InputError("--block-size", "at least 1", options.block_size)
    method, acceptance = options.speculative_method, options.acceptance
    for option, given in (("--speculative-method", method), ("--acceptance", acceptance)):
        if given is not None and not options.speculative_tokens:
            raise InputError(option, "--speculative-tokens as well", given)
    if not 0 <= options.kv_offloading_size < 1e6:
        raise InputError("--kv-offloading-size", "a number of GiB of at least 0", options.kv_offloading_size)
    windows = tuple(numbers(options.sliding_windows, "--sliding-windows", "128,0"))
    kind, _, order = options.engine.partition("-")
    if kind not in ENGINES or (order or "fcfs") not in ENGINES[kind] or (order and kind == "vllm"):
        orders = ", ".join(f"sglang-{each}" for each in ENGINES["sglang"])
        raise InputError("--engine", f"vllm, sglang or one of {orders}", options.engine)
    size = 1 if kind == "sglang" else options.block_size
    blocks = options.blocks if options.blocks is not None else tokens // size * len(windows) + 1
    if kind == "sglang" and options.blocks is not None:
        blocks = max(options.blocks - 1, 1) * options.block_size + 1
    try:
        return EngineSettings(
            latency,
            blocks,
            size,
            options.max_seqs,
            options.max_tokens,
            options.prefix_cache,
            order or "fcfs",
            swap=options.swap,
            async_scheduling=options.async_scheduling,
            speculative_method=method if method is not None else "mtp",
            num_speculative_tokens=options.speculative_tokens,
            acceptance=acceptance if acceptance is not None else 0.7,
            sliding_windows=windows,
            host_blocks=int(options.kv_offloading_size * 2**30 / (latency.kv_bytes * options.block_size)),
            engine=kind,
        )
    except InputError as error:
        raise InputError(OPTIONS[error.where], error.expected, error.got) from None


def speculation_of(settings: EngineSettings) -> dict[str, Any] | None:
    """Return the speculative decoding of an engine, for a summary; None if it drafts no tokens."""
    if not settings.num_speculative_tokens:
        return None
    method, tokens = settings.speculative_method, settings.num_speculative_tokens
    return {"method": method, "tokens": tokens, "acceptance": settings.acceptance}


def engine_about(options: EngineOptions) -> dict[str, Any]:
    """Return facts about the engines for a summary: the model, its GPU, and how well their latency was checked."""
    from kant.serving.fit import read_latency
    from kant.serving.latency import about, latency_model

    if options.latency is not None:
        found = read_latency(options.latency)
        on = found.check.gpu or options.gpu
        return {"model": found.model, "gpu": on, "tensor_parallel": 1, "latency": found.check.sentence}
    degree = latency_model(options.model, options.gpu, options.tensor_parallel)[1]
    row = (options.model, options.gpu, degree)
    return {"model": options.model, "gpu": options.gpu, "tensor_parallel": degree, "latency": about(row)}
