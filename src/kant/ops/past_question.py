"""Questions that a leader answers from its journal, by a process that it starts (`ops/journal_process.py`)."""

from __future__ import annotations

import sys
from typing import Any

from msgspec import Struct

from kant.model.errors import InputError

PROCESS = (sys.executable, "-m", "kant.ops.journal_process")
MOST = 50
"""The maximum number of orders in one plan."""


class PastQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """One question: the effect of `orders`, the `usage` by user or queue, or why the job `explain` got its place."""

    orders: tuple[dict[str, Any], ...] = ()
    usage: str = ""
    explain: str = ""

    def check(self) -> None:
        """Raise InputError unless there is exactly one question."""
        if bool(self.orders) + bool(self.usage) + bool(self.explain) != 1 or len(self.orders) > MOST:
            raise InputError("the question", f"up to {MOST} orders, or usage, or explain")
