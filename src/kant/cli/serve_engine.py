"""What several verbs of `kant serve` take: how an engine is set up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kant.cli.inputs import whole

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
        Path | None, Parameter(help="Fit the latency from measured steps: a CSV file of tokens,decode,chunks,ms.")
    ] = None
    blocks: Annotated[
        int | None, Parameter(help="KV blocks of an engine. Default: as many as its memory holds.", converter=whole)
    ] = None
    block_size: Annotated[int, Parameter(help="Tokens of a KV block.", converter=whole)] = 16
    max_seqs: Annotated[int, Parameter(help="Requests that an engine runs at once.", converter=whole)] = 128
    max_tokens: Annotated[int, Parameter(help="Tokens that a step computes at most.", converter=whole)] = 2048
    prefix_cache: Annotated[bool, Parameter(help="Keep blocks for prompts that begin alike.")] = True
    swap: Annotated[
        bool, Parameter(help="The preempted keep their KV in host memory, instead of computing it again.", negative="")
    ] = False


ENGINE = EngineOptions()


def engine_settings(options: EngineOptions) -> EngineSettings:
    """The settings of an engine; raises InputError where they make no sense."""
    from kant.model.errors import InputError
    from kant.serving.engine import EngineSettings
    from kant.serving.fit import fit_latency
    from kant.serving.latency import kv_tokens, latency_model

    latency, degree = latency_model(options.model, options.gpu, options.tensor_parallel)
    if options.latency is not None:
        latency = fit_latency(options.latency, latency.kv_bytes)
    if options.block_size < 1:
        raise InputError("--block-size", "a number of tokens from 1 on", options.block_size)
    blocks = options.blocks
    if blocks is None:
        blocks = kv_tokens(options.model, options.gpu, degree) // options.block_size + 1
    return EngineSettings(
        latency,
        blocks,
        options.block_size,
        options.max_seqs,
        options.max_tokens,
        options.prefix_cache,
        swap=options.swap,
    )
