"""The process that decides for routers whose decisions take milliseconds."""

from __future__ import annotations

import sys

from kant.service.side_process import SideProcess, answer_all
from kant.serving.aside import answer

LONGEST = 60.0


class RouterProcess(SideProcess):
    """Makes the decisions of a router in a process of its own; `close` ends it."""

    def __init__(self) -> None:
        super().__init__((sys.executable, "-m", "kant.service.router_process"), "the router's process", LONGEST)


if __name__ == "__main__":
    sys.exit(answer_all(answer, idle=None))
