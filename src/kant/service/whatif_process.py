"""The process that simulates the futures of `POST /v1/whatif`: a Task on its input, the answer on its output.

What cannot be answered ends it with 2 and one sentence: `{"error": …}`.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from kant.model.errors import InputError
from kant.scheduler.profile import builtin_profile
from kant.service.memory_left import memory_left
from kant.service.whatif import Task
from kant.sim.past import read_past
from kant.sim.whatif import what_if
from kant.sim.whatif_request import changes_of, end_of_futures

NICE = 10
MOST_MEMORY = 8 << 30
FIRST_TO_GO = "1000"
"""The word to the kernel by which it ends this process, and none beside it, where memory runs out."""
PR_SET_PDEATHSIG = 1


def main() -> int:
    """Answer one question."""
    _humble()
    try:
        task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
        answer = answer_of(task)
    except InputError as error:
        sys.stdout.buffer.write(msgspec.json.encode({"error": str(error)}))
        return 2
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


def answer_of(task: Task) -> dict[str, Any]:
    """What `kant whatif --json` would say, with the jobs called by the ids that people know. Raises InputError."""
    past = read_past(Path(task.journal), today=task.now_us)
    other = builtin_profile(task.question.profile) if task.question.profile else None
    changes = changes_of(past, task.question, other)
    found = what_if(past, changes, until=end_of_futures(past, task.question))
    assert found is not None, "nobody stops it"
    for row in (*found.answer["helped"], *found.answer["harmed"]):
        row["job"] = re.sub(r"~\d+$", "", row["job"])
    return found.answer


def _humble() -> None:
    """Let others go first, take no more memory than is given, and end with the one who has asked."""
    os.nice(NICE)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    with suppress(ValueError, OSError):
        most = most_memory(_own_data(), memory_left())
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def most_memory(own: int, left: int | None) -> int:
    """Bytes of data that the process may have: what it has, and half of what its container has `left` (None: plenty).

    The other half is for the scheduler beside it.
    """
    return MOST_MEMORY if left is None else min(own + left // 2, MOST_MEMORY)


def _own_data() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"^VmData:\s+(\d+) kB", status, re.MULTILINE)[1]) << 10  # type: ignore[index]


if __name__ == "__main__":
    sys.exit(main())
