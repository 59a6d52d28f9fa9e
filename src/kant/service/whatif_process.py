"""The process that simulates the futures of `POST /v1/whatif`: a Task on its input, the answer on its output.

What cannot be answered ends it with 2 and one sentence: `{"error": …}`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from kant.model.errors import InputError
from kant.scheduler.profile import builtin_profile
from kant.service.low_priority import lower_priority
from kant.service.whatif import Task
from kant.sim.past import read_past
from kant.sim.whatif import what_if
from kant.sim.whatif_request import changes_of, end_of_futures


def main() -> int:
    """Answer one question."""
    lower_priority()
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


if __name__ == "__main__":
    sys.exit(main())
