"""How long a step of an engine takes: a model of eight numbers, a table of them, and a fit from measured steps.

    ms = max(floor, slope tokens + fixed) + kv decode + context chunks + overhead

`tokens` counts all tokens of the step; `decode` sums, over requests that decode one token, their tokens so far;
`chunks` sums count (before + count / 2) over all others. Linear layers are `floor`, `slope` and `fixed`: fitted to
Vidur's profiles of them (Agrawal et al., MLSys'24; microsoft/vidur), all within 8 %. Attention is a roofline: reading
keys and values at 80 % of the memory's bandwidth, prefill at half of the peak rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kant.model.errors import InputError
from kant.serving.columns import Times

MODERN_OVERHEAD_MS = 2.0
ALL_REDUCE_MS = 3.0
"""Further overhead of tensor parallelism, for each GPU."""

SWAP_BYTES_PER_MS = 25e6
"""PCIe 4.0 in practice: 25 GB/s between host and GPU."""


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """The latency of a step, in milliseconds, and the bytes of keys and values that a token takes."""

    floor: float
    slope: float
    fixed: float
    kv: float
    context: float
    overhead: float = MODERN_OVERHEAD_MS
    kv_bytes: int = 131072

    def row(self) -> Times:
        """The model as the kernel takes it."""
        swap = self.kv_bytes / SWAP_BYTES_PER_MS
        return np.array([self.floor, self.slope, self.fixed, self.kv, self.context, self.overhead, swap])

    def step_ms(self, tokens: int, decode: int = 0, chunks: float = 0.0) -> float:
        """The duration of one step, in milliseconds."""
        linear = max(self.floor, self.slope * tokens + self.fixed)
        return linear + decode * self.kv + chunks * self.context + self.overhead


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: memory in GB, its bandwidth in bytes a second, peak dense rate in half precision."""

    memory_gb: float
    bandwidth: float
    peak: float


@dataclass(frozen=True, slots=True)
class Model:
    """A model: bytes of its weights in half precision, of keys and values a token; width and layers."""

    weight_gb: float
    kv_bytes: int
    width: int
    layers: int


GPUS = {
    "a100": Gpu(80, 2.039e12, 312e12),
    "a100-40": Gpu(40, 1.555e12, 312e12),
    "h100": Gpu(80, 3.35e12, 989e12),
    "h200": Gpu(141, 4.8e12, 989e12),
    "a40": Gpu(48, 0.696e12, 150e12),
    "a30": Gpu(24, 0.933e12, 165e12),
    "v100": Gpu(32, 0.9e12, 125e12),
}

MODELS = {
    "llama-2-7b": Model(13.5, 524288, 4096, 32),
    "llama-2-13b": Model(26.0, 819200, 5120, 40),
    "llama-3-8b": Model(16.1, 131072, 4096, 32),
    "codellama-34b": Model(67.5, 196608, 8192, 48),
    "llama-2-70b": Model(138.0, 327680, 8192, 80),
    "llama-3-70b": Model(141.1, 327680, 8192, 80),
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
    ("llama-3-8b", "h200", 1): (("llama-2-7b", "h100", 1), 0.825, 1.1),
    ("llama-2-70b", "h200", 4): (("llama-2-70b", "h100", 4), 0.75, 1.0),
    ("llama-2-7b", "a30", 1): (("llama-2-7b", "a100", 1), 2.039 / 0.933, 312 / 165),
    ("llama-2-7b", "a100-40", 1): (("llama-2-7b", "a100", 1), 2.039 / 1.555, 1.0),
    ("llama-3-8b", "a100-40", 1): (("llama-3-8b", "a100", 1), 2.039 / 1.555, 1.0),
}
"""Where nothing was measured: the nearest measured row, and the factors of its floor and of its slope."""


def combinations() -> list[tuple[str, str, int]]:
    """Every model, GPU and tensor parallelism of the table."""
    return sorted([*LINEAR, *ESTIMATED])


def latency_model(model: str, gpu: str, tensor_parallel: int | None = None) -> tuple[LatencyModel, int]:
    """The latency of a model's step on so many GPUs (None: the fewest in the table), and how many they are.

    Raises InputError where the table has no such row.
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
    floor_factor, slope_factor, base = 1.0, 1.0, key
    if key in ESTIMATED:
        base, floor_factor, slope_factor = ESTIMATED[key]
    floor, slope, fixed = LINEAR[base]
    card, shape, degree = GPUS[gpu], MODELS[model], key[2]
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


def kv_tokens(model: str, gpu: str, tensor_parallel: int) -> int:
    """Tokens whose keys and values fit: 90 % of the memory, less the weights and 1.5 GB a GPU for the rest."""
    card, shape = GPUS[gpu], MODELS[model]
    room = 0.9 * card.memory_gb * tensor_parallel - shape.weight_gb - 1.5 * tensor_parallel
    if room <= 0:
        raise InputError("--gpu", f"a GPU with memory for the weights of {model} ({shape.weight_gb} GB)", gpu)
    return int(room * 1e9 / shape.kv_bytes)


def scaled(model: LatencyModel, factor: float) -> LatencyModel:
    """The same engine, `factor` times as slow."""
    return replace(
        model,
        floor=model.floor * factor,
        slope=model.slope * factor,
        fixed=model.fixed * factor,
        kv=model.kv * factor,
        context=model.context * factor,
        overhead=model.overhead * factor,
    )
