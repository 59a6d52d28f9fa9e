"""The costs of a training job's operations under its placement: from the levels of the fabric, or as measured.

Ranks are laid out as in Megatron-LM: GPUs that share a layer are neighbours, then come the groups that exchange
experts, then replicas, and last the stages (Narayanan et al., SC 2021). A collective costs a number of steps with a
latency, and a number of bytes at a bandwidth (`placement/cost/communication.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kant.model.fabric import Fabric
from kant.model.training import Training
from kant.placement.cost.communication import FLOPS, Paths, Spans, all_reduce, paths
from kant.placement.perf.layer import CONTENTION, Cost, OperationCosts, Volumes
from kant.placement.perf.plan import Stack

OPERATIONS = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "gemm")
PLACES = ("node", "hbd", "leaf", "spine", "superspine", "beyond")
"""The narrowest domain that contains a group of GPUs."""

BYTES = 2.0
"""Bytes of one number (16 bits)."""
LAUNCH = 5e-6
"""Seconds to start a GEMM (our assumption)."""
SHARED = 0.5
"""Relative speed of each of two streams that share one link."""
GEMM = Cost(LAUNCH, 2.0 / FLOPS)


class Measured(NamedTuple):
    """Fitted costs, by (operation, domain as in PLACES); they override those of the fabric."""

    costs: Mapping[tuple[str, str], Cost]
    contention: float = CONTENTION


NOTHING_MEASURED = Measured({})


class Layout(NamedTuple):
    """How the GPUs of a job are grouped: `tensor` GPUs share a layer, and `expert` of these groups exchange experts.

    `data`: groups in a stage. `pipeline`: stages. `stage`: a stage's spans. `at`: the domain (PLACES) of an operation.
    """

    tensor: int
    expert: int
    data: int
    pipeline: int
    stage: Spans
    at: dict[str, str]


def layout(training: Training, spans: Spans) -> Layout:
    """Return the groups of a job with the GPUs of `spans`. No group exceeds the job's actual size.

    Stages, and the groups inside them, lie in one domain if the job's largest domain can hold one.
    """
    pipeline = min(training.pipeline, spans.gpus)
    gpus = spans.gpus // pipeline
    tensor = min(training.tensor, gpus)
    data = gpus // tensor
    expert = min(training.expert, data)
    most = tuple(min(each, gpus) for each in spans.largest)
    nodes, hbds = (max(-(-count // pipeline), 1) for count in (spans.nodes, spans.hbds))
    stage = Spans(gpus, min(nodes, gpus), min(hbds, gpus), most)  # type: ignore[arg-type]
    near = _near(stage, tensor)
    exchange = sum(within < tensor * expert for within in most)
    at = {
        "all_to_all": PLACES[exchange],
        "all_gather": PLACES[near],
        "reduce_scatter": PLACES[near],
        "all_reduce": PLACES[stage.level],
        "gemm": "",
    }
    return Layout(tensor, expert, data, pipeline, stage, at)


def _near(stage: Spans, tensor: int) -> int:
    """Return the level that GPUs which share a layer span: if they need more than one node, they stay close."""
    if stage.per_node >= tensor:
        return 0
    return min(stage.level, 1 if stage.per_hbd >= tensor else 2)


def operations(
    training: Training, fabric: Fabric, spans: Spans, measured: Measured = NOTHING_MEASURED
) -> OperationCosts:
    """Return the costs of a job's operations under its placement; units are bytes, and multiply-adds."""
    groups = layout(training, spans)
    cost, stage = paths(fabric, groups.stage), groups.stage
    found = {
        "all_to_all": _exchange(groups, cost),
        "all_gather": _ring(groups.tensor, (stage.per_node, stage.per_hbd), _near(stage, groups.tensor), cost, 0.5),
        "all_reduce": _ring(groups.data, _rails(groups, groups.tensor), stage.level, cost, 1.0),
        "gemm": GEMM,
    }
    found["reduce_scatter"] = found["all_gather"]
    for name in OPERATIONS:
        found[name] = measured.costs.get((name, groups.at[name]), found[name])
    contention = measured.contention
    inside, between = (groups.at[name] in PLACES[:2] for name in ("all_gather", "all_to_all"))
    if inside == between and groups.tensor > 1 and groups.expert > 1:
        contention = min(contention, SHARED)
    exchange, gather, scatter, reduce, gemm = (found[name] for name in OPERATIONS)
    return OperationCosts(exchange, gather, scatter, reduce, gemm, contention)


def _rails(groups: Layout, apart: int) -> tuple[float, float]:
    """Return the number of ranks per node and per HBD if every `apart`-th GPU is a rank."""
    return groups.stage.per_node / apart, groups.stage.per_hbd / apart


def _ring(ranks: int, rails: tuple[float, float], level: int, cost: Paths, part: float) -> Cost:
    """Return the cost of a ring all-reduce, or of half of it: an all-gather or a reduce-scatter."""
    beta = all_reduce(ranks, 1.0, rails, level, cost, calls=0)
    return Cost(part * (all_reduce(ranks, 1.0, rails, level, cost) - beta), part * beta)


def _exchange(groups: Layout, cost: Paths) -> Cost:
    """Return the cost of an all-to-all among ranks spaced `tensor` GPUs: equal parts to all, each over its level."""
    ranks = groups.expert
    if ranks <= 1:
        return Cost(0.0, 0.0)
    inside = [min(ranks, max(most // groups.tensor, 1)) for most in groups.stage.largest] + [ranks]
    reached, beta, level = 1, 0.0, 0
    for at, within in enumerate(inside):
        if within > reached:
            beta += (within - reached) / ranks * cost.byte[at]
            reached, level = within, at
    return Cost(cost.step[level], beta)


def stack_of(training: Training, fabric: Fabric, spans: Spans, measured: Measured = NOTHING_MEASURED) -> Stack:
    """Return the layers of one stage, and the costs of their operations."""
    costs = operations(training, fabric, spans, measured)
    groups = layout(training, spans)
    replicas = groups.data // groups.expert  # replicas of an expert
    stride = _rails(groups, groups.tensor * groups.expert)
    rare = _ring(replicas, stride, groups.stage.level, paths(fabric, groups.stage), 1.0)
    weight = rare.beta / costs.all_reduce.beta if costs.all_reduce.beta > 0 else 0.0
    kinds = [volumes(training, groups, expert, weight) for expert in (False, True)]
    count = -(-training.layers // groups.pipeline)
    having = [training.experts > 1 and (i + 1) % training.moe_every == 0 for i in range(count)]
    return Stack(tuple(kinds[has] for has in having), costs)


def volumes(training: Training, groups: Layout, expert: bool, weight: float) -> Volumes:
    """Return what a layer sends and computes on each GPU for a micro-batch; with `expert`, of a layer with experts.

    Gradients of experts are summed over fewer replicas than those of attention, so a byte of them counts as `weight`.
    """
    width, shared = training.width, groups.tensor
    tokens = training.length * training.sequences
    factor = training.top_k * training.capacity_permille / 1000 if expert else 1.0
    sent = factor * tokens * width * BYTES
    kv = (training.kv_heads or training.heads) / training.heads
    weights = (2.0 + 2.0 * kv) * width * width
    network = training.gemms * width * training.hidden
    own = network * (training.experts / groups.expert * weight if expert else 1.0)
    return Volumes(
        exchanged=sent / shared if expert and groups.expert > 1 else 0.0,
        gathered=sent if shared > 1 else 0.0,
        scattered=sent if shared > 1 else 0.0,
        expert_macs=factor * tokens * network / shared,
        expert_gemms=training.gemms,
        attention_gathered=tokens * width * BYTES if shared > 1 else 0.0,
        attention_scattered=tokens * width * BYTES if shared > 1 else 0.0,
        attention_macs=(tokens * weights + 2.0 * tokens * training.length * width) / shared,
        attention_gemms=6,
        gradient=(weights + own) / shared * BYTES if groups.data > 1 else 0.0,
    )
