"""How many examples a property is tried with: `@settings(max_examples=examples(40))`.

The usual number is what a change needs. KANT_EXAMPLES multiplies it: `KANT_EXAMPLES=20 make test` is the long hunt.
"""

from __future__ import annotations

import os

TIMES = float(os.environ.get("KANT_EXAMPLES", "1"))


def examples(usual: int) -> int:
    """`usual`, multiplied by what KANT_EXAMPLES says, and at least one."""
    return max(1, round(usual * TIMES))
