"""Measures engine steps as real GPU kernels: the layers of a model of a given shape on this machine's GPU, by PyTorch.

Weights, tokens and the choice of experts are random. Each step is captured as a CUDA graph and replayed, as in real
engines; the CPU overhead of a real engine is not included. `torch.compile` fuses small operations between the matrix
products. In FP8, the linear layers have static scales; attention, embeddings and the last layer are in BF16.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kant.model.errors import InputError
from kant.serving.shapes import HALF, Shape

POOL = 1 << 32
"""The number of values in the KV pool that attention reads."""

SPLIT = 256
"""The minimum number of keys that a GPU block reads when a long context is divided among blocks."""


@dataclass(frozen=True, slots=True)
class StepToMeasure:
    """A step: `chunk` tokens of one prompt after `before` of them; and `requests` that decode with `context` each."""

    chunk: int = 0
    before: int = 0
    requests: int = 0
    context: int = 0

    @property
    def tokens(self) -> int:
        """The tokens that the step computes."""
        return self.chunk + self.requests

    def row(self) -> tuple[int, int, float]:
        """Return tokens, decode and chunks, as the latency model counts them."""
        return self.tokens, self.requests * self.context, self.chunk * (self.before + self.chunk / 2)


def grid(most_tokens: int, kv_tokens: int) -> list[StepToMeasure]:
    """Return steps of prefill only, of decode only and of both, up to `most_tokens` a step and `kv_tokens` of KV."""
    chunks = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
    found = [StepToMeasure(chunk) for chunk in chunks]
    found += [StepToMeasure(chunk, before) for chunk in (512, 2048) for before in (2048, 8192, 24576)]
    requests = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
    found += [
        StepToMeasure(requests=count, context=context)
        for count in requests
        for context in (128, 512, 1024, 4096, 16384)
    ]
    found += [StepToMeasure(chunk, 0, count, 1024) for chunk in (256, 1024, 1984) for count in (16, 64)]
    return [
        step
        for step in found
        if step.tokens <= most_tokens and step.tokens + step.before + step.requests * step.context <= kv_tokens
    ]


def measured(shape: Shape, steps: list[StepToMeasure], seconds: float) -> Iterator[tuple[StepToMeasure, float]]:
    """Yield each step with its duration in milliseconds, every third step first, until `seconds` are used up.

    Raises InputError if PyTorch or a GPU is missing, or the model does not fit.
    """
    torch = load()
    if shape.weight_bytes < HALF and torch.cuda.get_device_capability() < (8, 9):
        what = "a model in half precision, as this GPU has no FP8"
        raise InputError("--model", what, torch.cuda.get_device_name())
    free, need = torch.cuda.mem_get_info()[0] / 1e9, shape.weight_gb + POOL * HALF / 1e9 + 4
    if need > free:
        raise InputError("--model", f"a model that needs at most {free:.0f} GB, the free memory", f"{need:.0f} GB")
    end = time.monotonic() + seconds
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's warnings about fusing
        layers = Layers(torch, shape, "cuda")
        for step in [step for first in range(3) for step in steps[first::3]]:
            if time.monotonic() > end:
                return
            yield step, layers.milliseconds(step)


def load() -> Any:
    """Return PyTorch if it sees a GPU. Raises InputError."""
    try:
        import torch
    except ImportError:
        raise InputError("--torch", "PyTorch; without it nothing is checked on a GPU") from None
    if not torch.cuda.is_available():
        raise InputError("--torch", "a GPU that PyTorch finds; without it nothing is checked on a GPU")
    return torch


def about(torch: Any) -> tuple[dict[str, str], float]:
    """Return the measurement conditions as fields of a `Check`, and the GB of the GPU's memory."""
    gpu, software = torch.cuda.get_device_properties(0), f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}"
    with suppress(OSError):
        software += f", driver {Path('/sys/module/nvidia/version').read_text(encoding='ascii').strip()}"
    return {"how": "the model's layers as kernels", "gpu": gpu.name, "software": software}, gpu.total_memory / 1e9


class Layers:
    """The layers with random weights on a device, and a KV pool of `pool` values."""

    def __init__(self, torch: Any, shape: Shape, device: str, pool: int = POOL) -> None:
        self.torch, self.shape, self.device, self.half = torch, shape, device, torch.bfloat16
        s, experts = shape, (shape.experts,) * (shape.experts > 0)
        self.layers = [
            {
                "qkv": self._weights((s.heads + 2 * s.kv_heads) * s.head, s.hidden),
                "out": self._weights(s.hidden, s.width),
                "up": self._weights(*experts, 2 * s.ffn, s.hidden),
                "down": self._weights(*experts, s.hidden, s.ffn),
                "gate": self._weights(s.experts, s.hidden, half=True) if s.experts else None,
            }
            for _ in range(s.layers)
        ]
        self.last, self.embedding = (self._weights(s.vocab, s.hidden, half=True) for _ in range(2))
        self.norm = torch.ones(s.hidden, device=device, dtype=self.half)
        self.pool = torch.empty(pool, device=device, dtype=self.half).normal_()
        self.ones = torch.ones(1 << 20, device=device)
        self.numbers = torch.arange(s.experts, device=device)
        if device == "cuda":
            torch._dynamo.config.suppress_errors = True  # operations that cannot be fused run unfused
            for name in ("add_norm", "rotate", "gated", "combine", "mixed", "routed"):
                setattr(self, name, torch.compile(getattr(self, name), dynamic=True))

    def _weights(self, *sizes: int, half: bool = False) -> Any:
        found = self.torch.empty(sizes, device=self.device, dtype=self.half).normal_(std=sizes[-1] ** -0.5)
        return found if half else self.narrow(found)

    def narrow(self, x: Any) -> Any:
        """Convert to the number format of the linear layers."""
        return x if self.shape.weight_bytes == HALF else x.to(self.torch.float8_e4m3fn)

    # --- between the matrix products -------------------------------------------------------------------------------

    def add_norm(self, x: Any, residual: Any) -> tuple[Any, Any]:
        """Return the sum of both, once normalised and once as it is."""
        total = x + residual
        scale = self.torch.rsqrt(total.float().pow(2).mean(dim=-1, keepdim=True) + 1e-6)
        return self.narrow((total * scale).to(self.half) * self.norm), total

    def rotate(self, x: Any, cos: Any, sin: Any) -> Any:
        """Apply rotary positions."""
        left, right = x.chunk(2, dim=-1)
        return self.torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)

    def gated(self, x: Any) -> Any:
        """Return silu(gate) * up of a gated feed-forward layer."""
        gate, up = x.chunk(2, dim=-1)
        return self.narrow(self.torch.nn.functional.silu(gate) * up)

    def combine(self, parts: Any, logs: Any) -> Any:
        """Combine the attention to the parts of a context, weighted by their log-sum-exp `logs`."""
        weights = self.torch.softmax(logs, dim=1).unsqueeze(-1)
        return (parts * weights).sum(dim=1).to(self.half)

    def routed(self, logits: Any) -> Any:
        """Draw experts at random: random weights would send similar tokens, as in a prompt, to only a few experts."""
        return logits.float() + self.drawn[: len(logits)]

    def mixed(self, rows: Any, weights: Any) -> Any:
        """Combine the outputs of each token's experts by their weights."""
        return (rows * weights.unsqueeze(-1)).sum(dim=1).to(self.half)

    # --- matrix products -----------------------------------------------------------------------------------------

    def linear(self, x: Any, weights: Any) -> Any:
        """Apply a linear layer."""
        if self.shape.weight_bytes == HALF:
            return x @ weights.t()
        scale = self.ones[0]
        return self.torch._scaled_mm(
            x, weights.t(), scale_a=scale, scale_b=scale, out_dtype=self.half, use_fast_accum=True
        )

    def grouped(self, x: Any, weights: Any, ends: Any) -> Any:
        """Apply a linear layer of each expert to its rows of `x`, which end at `ends`."""
        if self.shape.weight_bytes == HALF:
            return self.torch._grouped_mm(x, weights.transpose(-2, -1), offs=ends)
        scales = self.ones[: len(weights) * weights.shape[1]].view(len(weights), -1)
        return self.torch._scaled_grouped_mm(
            x, weights.transpose(-2, -1), self.ones[: len(x)], scales, offs=ends, out_dtype=self.half,
            use_fast_accum=True,
        )  # fmt: skip

    def feed_forward(self, x: Any, layer: dict[str, Any]) -> Any:
        """Apply one feed-forward layer to all tokens, or to each its `active` experts."""
        torch, s = self.torch, self.shape
        if not s.experts:
            return self.linear(self.gated(self.linear(x, layer["up"])), layer["down"])
        weights, chosen = torch.topk(torch.softmax(self.routed(x.to(self.half) @ layer["gate"].t()), dim=-1), s.active)
        numbers, order = torch.sort(chosen.flatten())
        ends = torch.searchsorted(numbers, self.numbers, right=True).to(torch.int32)
        rows = self.gated(self.grouped(x[order // s.active], layer["up"], ends))
        out = torch.empty((len(order), s.hidden), device=self.device, dtype=self.half)
        out[order] = self.grouped(rows, layer["down"], ends)
        return self.mixed(out.view(len(x), s.active, s.hidden), weights)

    # --- attention ---------------------------------------------------------------------------------------------

    def attend(self, q: Any, k: Any, v: Any, causal: bool = False) -> tuple[Any, Any]:
        """Return attention [batch, head, token, value] and its log-sum-exp. `causal`: the queries are the last tokens,
        and each sees no later token. GPU kernels allow fewer key than query heads."""
        torch = self.torch
        if self.device == "cuda":
            return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[:2]  # type: ignore[no-any-return]
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        scores = (q @ k.transpose(-2, -1)).float() * self.shape.head**-0.5
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
            scores = scores.masked_fill(~mask, -torch.inf)
        return (torch.softmax(scores, dim=-1).to(v.dtype) @ v), torch.logsumexp(scores, dim=-1)

    def decode(self, q: Any, layer: int, step: StepToMeasure) -> Any:
        """Attention of one token of each request to its context. A long context is divided among GPU blocks."""
        s, torch, requests = self.shape, self.torch, step.requests
        blocks = torch.cuda.get_device_properties(0).multi_processor_count if self.device == "cuda" else 8
        parts = 1
        while parts * requests * s.kv_heads < blocks and step.context % (2 * parts) == 0:
            if step.context // parts <= SPLIT:
                break
            parts *= 2
        keys, values = (self.cached(2 * layer + which, requests * parts, step.context // parts) for which in range(2))
        asked = q.reshape(requests, s.kv_heads, -1, s.head).repeat_interleave(parts, dim=0)
        out, logs = self.attend(asked, keys, values)
        if parts > 1:
            out = self.combine(out.view(requests, parts, *out.shape[1:]), logs.view(requests, parts, *logs.shape[1:]))
        return out.reshape(requests, s.width)

    def prefill(self, layer: int, step: StepToMeasure, q: Any, k: Any, v: Any) -> Any:
        """Causal attention of a chunk to itself and to the tokens before it."""
        if step.before:
            k, v = (self.cached(2 * layer + which, 1, step.before + step.chunk) for which in range(2))
        out, _ = self.attend(q, k, v, causal=True)
        return out.squeeze(0).transpose(0, 1).reshape(step.chunk, self.shape.width)

    def cached(self, place: int, requests: int, context: int) -> Any:
        """Return keys or values from the pool: different ones for each layer, if the pool is large enough."""
        sizes = (requests, self.shape.kv_heads, context, self.shape.head)
        count = requests * self.shape.kv_heads * context * self.shape.head
        start = place * count % (len(self.pool) - count + 1) // 64 * 64
        return self.pool[start : start + count].view(sizes)

    # --- a step ---------------------------------------------------------------------------------------------------

    def prepared(self, step: StepToMeasure) -> Callable[[], Any]:
        """Return the step as a function that returns the next token of each request."""
        torch, s, tokens = self.torch, self.shape, step.tokens
        ids = torch.randint(s.vocab, (tokens,), device=self.device)
        angles = torch.rand((tokens, 1, s.head // 2), device=self.device)
        cos, sin = angles.cos().to(self.half), angles.sin().to(self.half)
        slots = torch.randperm(tokens, device=self.device)
        self.drawn = 1e3 * torch.randn((tokens, s.experts), device=self.device)
        written = torch.empty((tokens, 2 * s.kv_heads, s.head), device=self.device, dtype=self.half)
        zeros = torch.zeros((tokens, s.hidden), device=self.device, dtype=self.half)
        answered = torch.arange(max(step.chunk - 1, 0), tokens, device=self.device)

        def attention(x: Any, layer: int) -> Any:
            qkv = self.linear(x, self.layers[layer]["qkv"]).view(tokens, -1, s.head)
            turned, v = self.rotate(qkv[:, : -s.kv_heads], cos, sin), qkv[:, -s.kv_heads :]
            q, k = turned[:, : s.heads], turned[:, s.heads :]
            written.index_copy_(0, slots, torch.cat([k, v], dim=1))
            parts = []
            if step.chunk:
                own = (each[: step.chunk].transpose(0, 1).unsqueeze(0) for each in (q, k, v))
                parts.append(self.prefill(layer, step, *own))
            if step.requests:
                parts.append(self.decode(q[step.chunk :], layer, step))
            together = parts[0] if len(parts) == 1 else torch.cat(parts)
            return self.linear(self.narrow(together), self.layers[layer]["out"])

        def run() -> Any:
            x, residual = self.embedding[ids], zeros
            for number, layer in enumerate(self.layers):
                x, residual = self.add_norm(x, residual)
                x, residual = self.add_norm(attention(x, number), residual)
                x = self.feed_forward(x, layer)
            return ((x + residual)[answered] @ self.last.t()).argmax(dim=-1)

        return run

    def milliseconds(self, step: StepToMeasure) -> float:
        """Return the median time of the step, over at least three runs and at least 60 ms of runs."""
        torch, run = self.torch, self.prepared(step)
        if self.device != "cuda":
            return _median(lambda: _seconds(run))
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.empty_cache()  # free the memory of earlier graphs
        with torch.cuda.graph(graph):
            run()

        def replay() -> float:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            return float(begin.elapsed_time(end)) / 1e3

        return _median(replay)


def _median(once: Callable[[], float]) -> float:
    once()
    took = [once()]
    while len(took) < 3 or sum(took) < 0.06:
        took.append(once())
    return 1e3 * statistics.median(took)


def _seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
