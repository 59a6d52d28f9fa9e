"""How long tests wait for what has to come, in seconds: so long that no busy machine is too slow for it.

It costs nothing where the thing comes, and KANT_PATIENCE_S=20 shows sooner that it does not. No test asserts that
anything took less than a time: it asserts the cause.
"""

import asyncio
import os
from collections.abc import Callable

PATIENCE_S = float(os.environ.get("KANT_PATIENCE_S", "180"))


async def until(holds: Callable[[], object], every_s: float = 0.02) -> None:
    """Wait until something holds, which is asked every so many seconds."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(every_s)
