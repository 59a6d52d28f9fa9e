"""The process that simulates for `POST /v1/whatif`: it reads a `WhatIfInput` from its input, and writes the answer.

If it cannot answer, it writes one sentence as `{"error": …}` and exits with status 2.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kant.model.errors import InputError
from kant.scheduler.profile import builtin_profile, builtin_texts
from kant.service.low_priority import lower_priority
from kant.service.whatif import WhatIfInput
from kant.sim.past import Past, read_past
from kant.sim.question import Question
from kant.sim.whatif import what_if
from kant.sim.whatif_request import changes_of, end_of_futures


def main(form: type[Any], answer_of: Callable[[Past, Any], Any]) -> int:
    """Read one question of the type `form` about a journal's past, and write the answer. Return the exit status."""
    lower_priority()
    try:
        task = msgspec.json.decode(sys.stdin.buffer.read(), type=WhatIfInput)
        past = read_past(Path(task.journal), today=task.now_us)
        answer = answer_of(past, msgspec.json.decode(task.question, type=form))
    except InputError as error:
        sys.stdout.buffer.write(msgspec.json.encode({"error": str(error)}))
        return 2
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


def answer_of(past: Past, question: Question) -> dict[str, Any]:
    """Return the object that `kant whatif --json` prints. Raises InputError."""
    if question.profile and question.profile not in builtin_texts():
        raise InputError("profile", f"one of {', '.join(builtin_texts())}", question.profile)
    other = builtin_profile(question.profile) if question.profile else None
    changes = changes_of(past, question, other)
    found = what_if(past, changes, until=end_of_futures(past, question))
    assert found is not None, "no job is preempted for it"
    return found.answer


if __name__ == "__main__":
    sys.exit(main(Question, answer_of))
