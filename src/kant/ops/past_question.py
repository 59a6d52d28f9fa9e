"""What operations ask of the journal of a leader, which starts a process for it (`ops/journal_process.py`)."""

from __future__ import annotations

import sys
from typing import Any

from msgspec import Struct

from kant.model.errors import InputError

PROCESS = (sys.executable, "-m", "kant.ops.journal_process")
MOST = 50
"""Orders in one plan."""


class PastQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """One of these: what `orders` would do, what was used by `usage` (user or queue), why the job `explain` got its
    place."""

    orders: tuple[dict[str, Any], ...] = ()
    usage: str = ""
    explain: str = ""

    def check(self) -> None:
        """Raise InputError where not one thing is asked."""
        if bool(self.orders) + bool(self.usage) + bool(self.explain) != 1 or len(self.orders) > MOST:
            raise InputError("the question", f"up to {MOST} orders, or usage, or explain")
