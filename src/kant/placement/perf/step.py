"""A training step of a job under its placement: its plan, its duration, and the parts of its duration."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from kant.model.fabric import Fabric
from kant.model.training import Training
from kant.placement.cost.communication import FULL, Spans, paths
from kant.placement.perf.layer import NAMES, Volumes
from kant.placement.perf.on_fabric import BYTES, NOTHING_MEASURED, Layout, Measured, layout, stack_of
from kant.placement.perf.plan import LayerPlan, Stack, StepPlan, best_plan, runs
from kant.placement.perf.streams import StreamTimes


class TrainingStep(NamedTuple):
    """A training step. `bubble`: seconds in which a stage waits before its first or after its last micro-batch.
    `passing`: seconds of messages between stages. The rest of `seconds` are the passes, including `plan.exposed`.
    """

    seconds: float
    plan: StepPlan
    stack: Stack
    groups: Layout
    micro_batches: int
    bubble: float
    passing: float

    def busy(self) -> dict[str, float]:
        """Return the seconds of each kind of task (NAMES) in the last micro-batch, during which gradients are summed.

        They overlap, so they do not add up to the time of the micro-batch.
        """
        found = dict.fromkeys(NAMES, 0.0)
        known: dict[tuple[Volumes, LayerPlan], tuple[StreamTimes, ...]] = {}
        for i, layer in enumerate(zip(self.stack.layers, self.plan.layers, strict=True)):
            if layer not in known:
                known[layer] = runs(self.stack, i, layer[1])
            for run in known[layer]:
                for task, start, end in zip(run.tasks, run.starts, run.ends, strict=True):
                    found[task.name] += end - start
        found["gradients"] += self.plan.exposed
        return found


def step(training: Training, fabric: Fabric, spans: Spans, measured: Measured = NOTHING_MEASURED) -> TrainingStep:
    """Return the step of a job with these spans, under the best known plan.

    Stages work in the 1F1B order: with m micro-batches and p stages each waits for p - 1 passes of one micro-batch
    (Narayanan et al., SC 2021). Gradients are summed during the last backward pass. Embeddings, the loss and the
    optimizer are left out: their time does not depend on the placement.
    """
    stack = stack_of(training, fabric, spans, measured)
    groups = layout(training, spans)
    plan = best_plan(stack)
    more = training.micro_batches - 1 + groups.pipeline - 1
    alone = plan.forward + _backward_alone(stack, plan) if more else 0.0
    passing = 0.0
    if groups.pipeline > 1:
        cost = paths(fabric, spans)
        sent = training.length * training.sequences * training.width * BYTES / groups.tensor
        passing = (
            2.0
            * (training.micro_batches + groups.pipeline - 1)
            * (cost.step[spans.level] + sent * cost.byte[spans.level])
        )
    seconds = plan.seconds + more * alone + passing
    return TrainingStep(seconds, plan, stack, groups, training.micro_batches, (groups.pipeline - 1) * alone, passing)


def _backward_alone(stack: Stack, plan: StepPlan) -> float:
    """Return the seconds of a backward pass that sums no gradients."""
    quiet = stack._replace(layers=tuple(layer._replace(gradient=0.0) for layer in stack.layers))
    return best_plan(quiet).backward


def step_slowdown(training: Training, fabric: Fabric, spans: Spans, best: Spans) -> int:
    """Return the step time under `spans` divided by that under `best`, in thousandths; never below FULL."""
    ratio = step_seconds(training, fabric, spans) / step_seconds(training, fabric, best)
    return max(FULL, int(ratio * FULL + 0.5))


@lru_cache(maxsize=4096)
def step_seconds(training: Training, fabric: Fabric, spans: Spans) -> float:
    """Return the seconds of a step. Results are cached: jobs with the same training have few different placements."""
    return step(training, fabric, spans).seconds
