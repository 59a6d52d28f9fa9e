"""By the request's own priority, before every step."""

from __future__ import annotations

from typing import ClassVar

from kant.serving.policies.priority import Priority


class PreemptivePriority(Priority):
    """Priority before every step: a better request takes the slot and the blocks of a worse one."""

    source: ClassVar[str] = "ours"

    preemptive = True
