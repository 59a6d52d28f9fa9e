"""How long a step of an engine takes: a formula with a few parameters, and a table of these by model and GPU.

    ms = max(floor + experts (1 - missed ** tokens), slope tokens + fixed) + kv decode + context chunks + overhead

`tokens` counts all tokens of the step. `decode` sums, over requests that decode one token, their tokens so far.
`chunks` sums count (before + count / 2) over all other requests. The weights of an expert are read if at least one
token is routed to it; `missed` is the probability that a token is not. Linear layers are `floor`, `slope` and `fixed`,
fitted to Vidur's profiles of them (Agrawal et al., MLSys'24; microsoft/vidur), all within 8 %. Attention is a roofline:
it reads keys and values at 80 % of the memory bandwidth, and prefill runs at half of the peak rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kant.model.errors import InputError
from kant.serving.columns import Times
from kant.serving.shapes import HALF, Shape, shape_of

if TYPE_CHECKING:
    from kant.serving.fit import LatencyFile

MODERN_OVERHEAD_MS = 2.0
ALL_REDUCE_MS = 3.0
"""The added overhead of tensor parallelism per GPU, in milliseconds a step."""

SWAP_BYTES_PER_MS = 25e6
"""Bytes per millisecond between host and GPU: 25 GB/s, as PCIe 4.0 reaches in practice."""


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """The parameters of a step's latency, in milliseconds (see the module), and the bytes of KV per token."""

    floor: float
    slope: float
    fixed: float
    kv: float
    context: float
    overhead: float = MODERN_OVERHEAD_MS
    kv_bytes: int = 131072
    experts: float = 0.0
    missed: float = 0.0

    @cache  # noqa: B019  there are few models, and each is kept anyway
    def row(self) -> Times:
        """Return the parameters as the row that the compiled step loop takes."""
        swap = self.kv_bytes / SWAP_BYTES_PER_MS
        step = [self.floor, self.slope, self.fixed, self.kv, self.context, self.overhead]
        return np.array([*step, swap, self.experts, self.missed])

    def step_ms(self, tokens: int, decode: int = 0, chunks: float = 0.0) -> float:
        """Return the duration of one step, in milliseconds."""
        floor = self.floor + self.experts * (1 - self.missed**tokens)
        linear = max(floor, self.slope * tokens + self.fixed)
        return linear + decode * self.kv + chunks * self.context + self.overhead


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: memory in GB, its bandwidth in bytes a second, peak dense rate in half precision."""

    memory_gb: float
    bandwidth: float
    peak: float


GPUS = {
    "a100": Gpu(80, 2.039e12, 312e12),
    "a100-40": Gpu(40, 1.555e12, 312e12),
    "h100": Gpu(80, 3.35e12, 989e12),
    "h200": Gpu(141, 4.8e12, 989e12),
    "a40": Gpu(48, 0.696e12, 150e12),
    "a30": Gpu(24, 0.933e12, 165e12),
    "v100": Gpu(32, 0.9e12, 125e12),
}

LINEAR = {
    ("llama-2-7b", "a100", 1): (9.43, 0.0646, 2.22),
    ("llama-2-7b", "h100", 1): (5.77, 0.0204, 2.9),
    ("llama-2-7b", "a40", 1): (26.6, 0.1249, 8.3),
    ("llama-3-8b", "a100", 1): (10.47, 0.0668, 6.98),
    ("codellama-34b", "a100", 2): (23.5, 0.1516, 14.2),
    ("codellama-34b", "h100", 2): (13.5, 0.0512, 7.7),
    ("llama-2-70b", "a100", 4): (26.1, 0.1578, 18.5),
    ("llama-2-70b", "h100", 4): (15.0, 0.0535, 10.1),
    ("llama-2-70b", "h100", 8): (8.9, 0.029, 8.4),
    ("llama-3-70b", "a100", 4): (26.2, 0.1591, 20.2),
    ("llama-3-70b", "a100", 8): (15.0, 0.0877, 7.3),
}
"""Floor (ms), slope (ms a token) and fixed part (ms) of all linear layers, by model, GPU and tensor parallelism."""

ESTIMATED = {
    ("llama-3-8b", "h100", 1): (("llama-2-7b", "h100", 1), 1.1, 1.1),
    ("llama-2-7b", "h200", 1): (("llama-2-7b", "h100", 1), 0.75, 1.0),
    ("llama-2-70b", "h200", 4): (("llama-2-70b", "h100", 4), 0.75, 1.0),
    ("llama-2-7b", "a30", 1): (("llama-2-7b", "a100", 1), 2.039 / 0.933, 312 / 165),
    ("llama-2-7b", "a100-40", 1): (("llama-2-7b", "a100", 1), 2.039 / 1.555, 1.0),
    ("llama-3-8b", "a100-40", 1): (("llama-3-8b", "a100", 1), 2.039 / 1.555, 1.0),
}
"""For combinations that were not measured: the nearest measured row, and factors for its floor and its slope."""


ROOFLINE = (
    ("mixtral-8x7b", "h100", 2),
    ("mixtral-8x7b", "h200", 2),
    ("qwen3-30b-a3b", "a100", 1),
    ("llama-3-70b-fp8", "h100", 2),
)
"""Rows for mixtures of experts and for FP8. They are rooflines, checked against published figures."""

MEASURED = (
    ("llama-3-8b", "h200", 1),
    ("llama-3-8b-fp8", "h200", 1),
    ("mixtral-8x7b-fp8", "h200", 1),
    ("qwen3-30b-a3b-fp8", "h200", 1),
)
"""Rows that `kant serve fit --torch` has measured, with their steps in `measured/GPU-MODEL.json`."""

VLLM = "vLLM's nightly benchmark, batch 8"
NIM = "the performance page of NVIDIA NIM 1.8"
TENSTORRENT = "vLLM, by tenstorrent/tt-inference-server, issue 340"
PUBLISHED: dict[tuple[str, str, int], tuple[str, tuple[tuple[int, int, float, float], ...]]] = {
    ("llama-3-8b", "a100", 1): (VLLM, ((8, 768, 0, 1585.43 / 128),)),
    ("llama-3-8b", "h100", 1): (VLLM, ((8, 768, 0, 997.54 / 128),)),
    ("llama-3-8b", "h200", 1): (VLLM, ((8, 768, 0, 833.42 / 128),)),
    ("mixtral-8x7b", "h100", 2): (VLLM, ((8, 768, 0, 2326.97 / 128),)),
    ("mixtral-8x7b", "h200", 2): (VLLM, ((8, 768, 0, 1917.44 / 128),)),
    ("qwen3-30b-a3b", "a100", 1): (TENSTORRENT, ((1, 192, 0, 9.6), (1, 2112, 0, 9.9), (1, 4160, 0, 10.3))),
    ("llama-3-70b-fp8", "h100", 2): (NIM, ((1, 5250, 0, 18.58), (5000, 0, 5000 * 2500.0, 406.77))),
}
"""Published measurements: the source, and steps as tokens, decode, chunks and milliseconds."""

MOE_LAYER_MS, REDUCE_MS = 0.06, 0.0075
"""Overhead of an expert layer besides its weights, and of an all-reduce (two a layer) per GPU. Fitted to PUBLISHED."""


def combinations() -> list[tuple[str, str, int]]:
    """Return every model, GPU and tensor parallelism of the table."""
    return sorted([*LINEAR, *ESTIMATED, *ROOFLINE, *MEASURED])


@cache
def measured(key: tuple[str, str, int]) -> LatencyFile:
    """Return the measured step latencies of (model, GPU, tensor parallelism)."""
    from kant.serving.fit import read_latency

    return read_latency(Path(__file__).parent / "measured" / f"{key[1]}-{key[0]}.json")


def about(key: tuple[str, str, int]) -> str:
    """Return the origin of a row of the table, and how far it deviates from known measurements."""
    if key in LINEAR:
        origin = "linear layers within 8 % of Vidur's profiles, attention by a roofline"
    elif key in ESTIMATED:
        origin = f"scaled from {' on '.join(ESTIMATED[key][0][:2])}"
    elif key in MEASURED:
        origin = measured(key).check.sentence
    else:
        origin = "rooflines"
    if key not in PUBLISHED:
        return origin if key in MEASURED else f"{origin}; no step checked"
    who, steps = PUBLISHED[key]
    off = [latency_model(*key)[0].step_ms(*step[:3]) / step[3] - 1 for step in steps]
    said = ", ".join(f"{100 * each:+.0f} %" for each in off)
    return f"{origin}; {said} against {who}"


def latency_model(model: str, gpu: str, tensor_parallel: int | None = None) -> tuple[LatencyModel, int]:
    """Return the latency of a model on this many GPUs (None: the fewest in the table), and the number of GPUs.

    Raises InputError if the table has no such row.
    """
    known = combinations()
    if model not in {row[0] for row in known}:
        raise InputError("--model", f"one of {', '.join(sorted({row[0] for row in known}))}", model)
    fits = [row for row in known if row[:2] == (model, gpu)]
    if not fits:
        raise InputError("--gpu", f"one of {', '.join(sorted({row[1] for row in known if row[0] == model}))}", gpu)
    key = fits[0] if tensor_parallel is None else (model, gpu, tensor_parallel)
    if key not in fits:
        counts = ", ".join(str(row[2]) for row in fits)
        raise InputError("--tensor-parallel", f"one of {counts} for {model} on {gpu}", tensor_parallel)
    if key in MEASURED:
        return measured(key).latency, key[2]
    if key in ROOFLINE:
        return _roofline(shape_of(model), GPUS[gpu], key[2]), key[2]
    floor_factor, slope_factor, base = 1.0, 1.0, key
    if key in ESTIMATED:
        base, floor_factor, slope_factor = ESTIMATED[key]
    floor, slope, fixed = LINEAR[base]
    card, shape, degree = GPUS[gpu], shape_of(model), key[2]
    found = LatencyModel(
        floor=floor * floor_factor,
        slope=slope * slope_factor,
        fixed=fixed,
        kv=shape.kv_bytes / (0.8 * card.bandwidth * degree) * 1e3,
        context=4 * shape.width * shape.layers / (0.5 * card.peak * degree) * 1e3,
        overhead=MODERN_OVERHEAD_MS + (ALL_REDUCE_MS * degree if degree > 1 else 0.0),
        kv_bytes=shape.kv_bytes,
    )
    return found, degree


def _roofline(shape: Shape, card: Gpu, degree: int) -> LatencyModel:
    """Return a roofline model: weights are read at 80 % of the bandwidth, computing is at half peak (FP8: double)."""
    last = shape.vocab * shape.hidden * HALF
    reads, computes = 0.8 * card.bandwidth * degree / 1e3, 0.5 * card.peak * degree / 1e3
    active = shape.dense_weights + shape.expert_weights * (1 - shape.missed)
    reduces = 2 * shape.layers * degree * REDUCE_MS if degree > 1 else 0.0
    return LatencyModel(
        floor=(shape.dense_weights * shape.weight_bytes + last) / reads,
        slope=2 * active * shape.weight_bytes / HALF / computes,
        fixed=0.0,
        kv=shape.kv_bytes / reads,
        context=4 * shape.width * shape.layers / computes,
        overhead=MODERN_OVERHEAD_MS + reduces + (shape.layers * MOE_LAYER_MS if shape.experts else 0.0),
        kv_bytes=shape.kv_bytes,
        experts=shape.expert_weights * shape.weight_bytes / reads,
        missed=shape.missed,
    )


def kv_tokens(model: str, gpu: str, tensor_parallel: int) -> int:
    """Return how many tokens' KV fits: in 90 % of the memory, minus the weights and 1.5 GB per GPU for the rest."""
    card, shape = GPUS[gpu], shape_of(model)
    room = 0.9 * card.memory_gb * tensor_parallel - shape.weight_gb - 1.5 * tensor_parallel
    if room <= 0:
        raise InputError("--gpu", f"a GPU with memory for the weights of {model} ({shape.weight_gb} GB)", gpu)
    return int(room * 1e9 / shape.kv_bytes)
