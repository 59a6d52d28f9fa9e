"""Preemption by the request's own priority, before every step."""

from __future__ import annotations

from typing import ClassVar

from kant.serving.policies.priority import Priority


class PreemptivePriority(Priority):
    """Priority before every step: a request of better priority takes the slot and the blocks of one of worse
    priority.
    """

    source: ClassVar[str] = "this project"

    preemptive = True
