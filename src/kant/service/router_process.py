"""The process that makes a router's decisions if each takes milliseconds."""

from __future__ import annotations

import sys

from kant.compiled import compiling_ahead
from kant.service.side_process import SideProcess, answer_all
from kant.serving.aside import answer


class RouterProcess(SideProcess):
    """Makes the decisions of a router in a separate process; `close` ends it."""

    def __init__(self) -> None:
        super().__init__((sys.executable, "-m", "kant.service.router_process"), "the router's process")


if __name__ == "__main__":
    with compiling_ahead():
        sys.exit(answer_all(answer, idle=None))
