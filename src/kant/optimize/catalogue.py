"""The available optimisers, for `kant policies`: what each plans, with which command, and the source of the idea."""

from __future__ import annotations

from dataclasses import dataclass

from kant.model.taxonomy import Tags, tagged

PLANS: Tags = {
    "level": ("cluster",),
    "architecture": ("monolithic",),
    "unit": ("gang",),
    "timing": ("offline",),
    "knowledge": ("estimated",),
    "preemption": ("none",),
    "freshness": ("cached",),
}
"""The tags that all planners in this file share (`kant.model.taxonomy`)."""


@dataclass(frozen=True, slots=True)
class Optimiser:
    """A planner that runs outside the scheduling cycle, by the Kant command `command`."""

    name: str
    about: str
    source: str
    command: str
    tags: Tags


OPTIMISERS = (
    Optimiser(
        "calendar",
        "Bookings of contiguous GPUs over windows of time on one line, by tree search; or those that collide.",
        "static allocation as in MiniMalloc, Moffitt, ASPLOS 2023",
        "kant plan calendar",
        tagged(PLANS, objective="utilisation", resources="1-d topology", method="search"),
    ),
    Optimiser(
        "capacity",
        "Starts of pipelines with deadlines for the least weighted peak, by repair and windows of CP-SAT.",
        "the problem of iScheduler, arXiv 2602.06064; the method is ours",
        "kant plan capacity",
        tagged(
            PLANS, unit="dag", timing="offline periodic", objective="cost", resources="multi-d", method="search solver"
        ),
    ),
    Optimiser(
        "defrag",
        "Few migrations after which the fewest free cores are fragments, by a priced flow with a proven bound.",
        "the problem of VMR2L, EuroSys 2025, arXiv 2505.17359; the method is ours",
        "kant defrag",
        tagged(
            PLANS, unit="vm", timing="periodic", knowledge="none", objective="fragmentation",
            preemption="move budgeted", resources="multi-d", method="solver search",
        ),
    ),
    Optimiser(
        "pack",
        "Moves and evictions so that waiting pods start, by bounds, repair and aggregated CP-SAT.",
        "the problem of Priority Matters, arXiv 2511.08373; the method is ours",
        "kant pack",
        tagged(
            PLANS, timing="fallback", knowledge="none", objective="priority", preemption="evict move",
            resources="multi-d topology heterogeneous", method="solver search",
        ),
    ),
    Optimiser(
        "pack-paper",
        "The published model of the same problem: a Boolean for each pod and node, tier by tier.",
        "Priority Matters, arXiv 2511.08373",
        "kant pack --model paper",
        tagged(
            PLANS, timing="fallback", knowledge="none", objective="priority", preemption="evict move",
            resources="multi-d topology heterogeneous", method="solver",
        ),
    ),
    Optimiser(
        "residency",
        "At each use of a buffer: keep it in fast memory, copy it there ahead of time, or read it from its own tier.",
        "the game of mallocMuZero, arXiv 2305.07440; the beam and the model for CP-SAT are ours",
        "kant plan residency",
        tagged(
            PLANS, level="node", unit="dag", knowledge="clairvoyant", objective="makespan", preemption="move",
            resources="1-d", method="search solver",
        ),
    ),
    Optimiser(
        "share",
        "Shares of GPUs in rounds, for jobs whose batch size changes: windows by CP-SAT or by gains, and rivals.",
        "Shockwave, NSDI 2023, arXiv 2210.00093; one integer a job for its rounds is ours",
        "kant share simulate",
        tagged(
            PLANS, timing="round", knowledge="learned", objective="fairness makespan", preemption="evict",
            resources="1-d", method="solver rule", freshness="live",
        ),
    ),
    Optimiser(
        "training-step",
        "Pipeline degrees of the layers of a model, and where gradients are summed, for the shortest step.",
        "FSMoE, ASPLOS 2025, arXiv 2501.10714, as the plan to be no worse than; gaps by dynamic programming are ours",
        "kant perf step",
        tagged(
            PLANS, level="dataflow", unit="dag", objective="makespan", resources="multi-d topology", method="search"
        ),
    ),
    Optimiser(
        "workflow-optimal",
        "The shortest plan of a small graph of stages on different processors, with its proof, by CP-SAT.",
        "the problem of HEFT, IEEE TPDS 13(3), 2002; the model is ours",
        "kant plan workflow --policy optimal",
        tagged(PLANS, unit="dag", objective="makespan", resources="heterogeneous", method="solver"),
    ),
)  # fmt: skip
"""Every optimiser, by name."""
