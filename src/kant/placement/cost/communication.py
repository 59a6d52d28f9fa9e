"""The communication cost of a placement: the time of a job's collectives over the levels of the fabric that it spans.

A collective costs alpha-beta time: a number of steps with a latency, and a number of bytes at a bandwidth. A ring
all-reduce of B bytes over p GPUs takes 2(p-1) steps and moves 2(p-1)/p B bytes through each of them (Thakur,
Rabenseifner and Gropp, IJHPCA 19(1), 2005). Steps inside a node and between nodes are counted separately, as NCCL does
(src/graph/tuning.cc).

Only sums, products and quotients of floats are used, and results are rounded to thousandths, so all machines agree.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from msgspec import Struct

from kant.model.fabric import Fabric

FULL = 1000
"""The run time at the best placement, in thousandths."""


class Spans(NamedTuple):
    """The size of a placement, in the terms that matter to a collective.

    `gpus` counts the GPUs that work together, `nodes` and `hbds` the nodes and HBDs that hold some of them. `largest`
    has the largest number of these GPUs in one node, HBD, leaf, spine and superspine. A share of a GPU counts as one.
    """

    gpus: int
    nodes: int
    hbds: int
    largest: tuple[int, int, int, int, int]

    @property
    def level(self) -> int:
        """The lowest level that holds all GPUs: 0 node, 1 HBD, 2 leaf, 3 spine, 4 superspine, 5 beyond."""
        return sum(most < self.gpus for most in self.largest)

    @property
    def per_node(self) -> float:
        """Average number of GPUs per node."""
        return self.gpus / self.nodes

    @property
    def per_hbd(self) -> float:
        """Average number of GPUs per HBD."""
        return self.gpus / self.hbds


class Communication(Struct, frozen=True):
    """The computation and communication of one training step of a job. Bytes are per GPU.

    - `compute`: seconds of arithmetic.
    - `data_bytes`: gradients, summed over the replicas by a ring. `hidden` is the share of that time that overlaps with
      the arithmetic.
    - `tensor`: GPUs that share one layer, in one node if the placement allows it. `tensor_bytes` are summed among them
      in `tensor_calls` all-reduces.
    - `pipeline`: stages. `pipeline_bytes` go to the neighbours in `pipeline_calls` messages.
    - `expert`: GPUs that exchange `expert_bytes` all to all, in `expert_calls` exchanges.
    """

    compute: float
    data_bytes: float = 0.0
    hidden: float = 0.0
    tensor: int = 1
    tensor_bytes: float = 0.0
    tensor_calls: int = 0
    pipeline: int = 1
    pipeline_bytes: float = 0.0
    pipeline_calls: int = 0
    expert: int = 1
    expert_bytes: float = 0.0
    expert_calls: int = 0


class Paths(NamedTuple):
    """Costs of a fabric under one placement, per level: seconds for one byte of one GPU, and seconds for one step."""

    byte: tuple[float, ...]
    step: tuple[float, ...]


def paths(fabric: Fabric, spans: Spans) -> Paths:
    """Return the cost of crossing each level. A path through a level is never faster than one that stays below it.

    A link's contention c counts as 1 + (c - 1) x, with x the share of the job's GPUs outside its largest domain.
    """
    node, *above = fabric.links
    byte, step = [1e-9 / node.bandwidth], [1e-6 * node.latency]
    for link, most in zip(above, spans.largest, strict=True):
        outside = (spans.gpus - most) / spans.gpus
        byte.append(max(byte[-1], (1.0 + (link.contention - 1.0) * outside) * 1e-9 / link.bandwidth))
        step.append(max(step[-1], 1e-6 * link.latency))
    return Paths(tuple(byte), tuple(step))


def all_reduce(ranks: int, size: float, rails: tuple[float, float], level: int, cost: Paths, calls: int = 1) -> float:
    """Return the seconds that a ring over `ranks` GPUs needs to sum `size` bytes in `calls` parts.

    `rails` is the number of ranks per node, and per HBD. Rings through a node or an HBD use the ports of all their GPUs
    there at once.
    """
    if ranks <= 1 or size == 0.0:
        return 0.0
    in_node, in_hbd = (min(max(part, 1.0), float(ranks)) for part in rails)
    hosts = ranks / in_node if level > 0 else 1.0
    islands = ranks / in_hbd if level > 1 else 1.0
    byte = cost.byte[0]
    if hosts > islands:
        byte = max(byte, cost.byte[1] / in_node)
    if islands > 1.0:
        byte = max(byte, cost.byte[level] / in_hbd)
    steps = (ranks - hosts) * cost.step[0] + (hosts - islands) * cost.step[1] + (islands - 1.0) * cost.step[level]
    return 2.0 * (ranks - 1) / ranks * size * byte + calls * (2.0 * steps)


def all_to_all(ranks: int, size: float, calls: int, spans: Spans, cost: Paths) -> float:
    """Return the seconds for `ranks` GPUs to send `size` bytes each, in equal parts to all, in `calls` exchanges."""
    if ranks <= 1:
        return 0.0
    inside = [min(ranks, most) for most in spans.largest] + [ranks]
    reached, seconds, level = 1, 0.0, 0
    for at, within in enumerate(inside):
        if within > reached:
            seconds += (within - reached) / ranks * size * cost.byte[at]
            reached, level = within, at
    return seconds + calls * cost.step[level]


def step_seconds(model: Communication, fabric: Fabric, spans: Spans) -> float:
    """Return the duration of one step of the job under a placement."""
    if spans.gpus <= 1:
        return model.compute
    cost, level = paths(fabric, spans), spans.level
    per_node, per_hbd = spans.per_node, spans.per_hbd
    tensor = min(model.tensor, spans.gpus)
    replica = tensor * model.pipeline
    data = all_reduce(spans.gpus // replica, model.data_bytes, (per_node / tensor, per_hbd / tensor), level, cost)
    # Ranks are laid out so that the GPUs of a layer are neighbours; if they need more than one node they stay close.
    near = 0 if per_node >= tensor else min(level, 1 if per_hbd >= tensor else 2)
    summed = all_reduce(tensor, model.tensor_bytes, (per_node, per_hbd), near, cost, model.tensor_calls)
    between = 0 if per_node >= replica else min(level, 1) if per_hbd >= replica else level
    passed = model.pipeline_bytes * cost.byte[between] + model.pipeline_calls * cost.step[between]
    exchanged = all_to_all(min(model.expert, spans.gpus), model.expert_bytes, model.expert_calls, spans, cost)
    return model.compute + (1.0 - model.hidden) * data + summed + (passed if model.pipeline > 1 else 0.0) + exchanged


def slowdown(model: Communication, fabric: Fabric, spans: Spans, best: Spans) -> int:
    """Return the run time under `spans` divided by that under `best`, in thousandths; never below FULL."""
    ratio = step_seconds(model, fabric, spans) / step_seconds(model, fabric, best)
    return max(FULL, int(ratio * FULL + 0.5))


FLOPS = 4e14
"""The sustained training rate of one H100: Llama 3 reports 380 to 430 TFLOP/s (arXiv 2407.21783, table 4)."""


def dense(parameters: float, layers: int, width: int, tokens: int, tensor: int = 1, pipeline: int = 1) -> Communication:
    """Return the model of a dense transformer that trains on `tokens` tokens per GPU and step, in 16 bits.

    Arithmetic: 6 operations per parameter and token (Kaplan et al., arXiv 2001.08361). Gradients: two bytes for each of
    the GPU's parameters. Four all-reduces of a layer's activations (Shoeybi et al., arXiv 1909.08053), and the
    activations sent forward and back once between stages (Narayanan et al., SC 2021). One sequence of 8,192 tokens is
    one message. Half of the gradients' time is hidden (our assumption: between none and all; not measured).
    """
    sequences = max(tokens * tensor * pipeline // 8192, 1)
    return Communication(
        compute=6.0 * parameters * tokens / FLOPS,
        data_bytes=2.0 * parameters / (tensor * pipeline),
        hidden=0.5,
        tensor=tensor,
        tensor_bytes=8.0 * layers * tokens * tensor * width if tensor > 1 else 0.0,
        tensor_calls=4 * layers * sequences // pipeline if tensor > 1 else 0,
        pipeline=pipeline,
        pipeline_bytes=4.0 * tokens * pipeline * width if pipeline > 1 else 0.0,
        pipeline_calls=2 * sequences if pipeline > 1 else 0,
    )


@cache
def default_model(gpus: int) -> Communication:
    """Return the model assumed for a job of `gpus` GPUs that states none: a Llama 3 model of a usual size.

    Up to 64 GPUs: 8B parameters, only data parallel, with two sequences of 8,192 tokens per GPU and step. Up to 1,024
    GPUs: 70B parameters over 8 GPUs of a node and 4 stages, with 4 million tokens a step on 1,024 GPUs. Above that:
    405B over 8 GPUs and 16 stages, with 16 million tokens on 16,384 (arXiv 2407.21783, tables 3 and 4; for smaller jobs
    this is our assumption). The fewer tokens a GPU has per step, the larger the share of communication.
    """
    if gpus <= 64:
        return dense(8e9, 32, 4096, 16_384)
    if gpus <= 1024:
        return dense(70e9, 80, 8192, 4096, tensor=8, pipeline=4)
    return dense(405e9, 126, 16_384, 1024, tensor=8, pipeline=16)
