"""Preemption by the request's own priority, between two layers of a step (QLLM, arXiv 2503.09304)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.serving.policies.preemptive_priority import PreemptivePriority


@dataclass
class LayeredPriority(PreemptivePriority):
    """QLLM's preemption (arXiv 2503.09304): a better priority interrupts a step between two of its layers."""

    source: ClassVar[str] = "QLLM, EuroMLSys 2025, arXiv 2503.09304"

    layers: int = 32
