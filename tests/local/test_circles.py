"""No update lets jobs wait for each other for ever."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kant.local.dependencies import circle
from kant.local.record import JobPhase, JobRecord
from kant.model.submission import Submission


def record(seq: int, name: str, singleton: bool, after: frozenset[int]) -> JobRecord:
    submission = Submission(command=("true",), workdir="/", name=name, singleton=singleton)
    parts = tuple(str(job) for job in sorted(after))
    return JobRecord(
        seq, str(seq), submission, b"", "ann", 0, JobPhase.BLOCKED,
        after=parts[::2], after_started=tuple(f"{job}+60" for job in parts[1::2]),
    )  # fmt: skip


def all_end(records: list[JobRecord]) -> bool:
    """Whether each job starts once those before it are over, however long that takes."""
    left = {record.id: record for record in records}
    while ready := [
        one.id
        for one in left.values()
        if not any(job in left for job in one.ahead)
        and not (
            one.submission.singleton
            and any(other.seq < one.seq and other.submission.name == one.submission.name for other in left.values())
        )
    ]:
        for job in ready:
            del left[job]
    return not left


@given(st.data())
def test_a_circle_is_found_where_somebody_would_wait_for_ever(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 7))
    names, flags = st.sampled_from("ab"), st.booleans()
    records = [
        record(seq, data.draw(names), data.draw(flags), data.draw(st.frozensets(st.integers(0, seq - 1), max_size=2)))
        if seq
        else record(0, data.draw(names), data.draw(flags), frozenset())
        for seq in range(count)
    ]  # each comes after earlier ones, as at its submission
    place = data.draw(st.integers(0, count - 1))
    others = st.frozensets(st.integers(0, count - 1), max_size=3)
    new = record(place, data.draw(names), data.draw(flags), data.draw(others))
    found = circle({one.id: one for one in records}, new)
    assert bool(found) is not all_end([*records[:place], new, *records[place + 1 :]])
    assert found in {"", *(one.id for one in records)}


def test_a_hundred_thousand_singletons_are_followed_once() -> None:
    records = [record(seq, "a", True, frozenset()) for seq in range(100_000)]
    last = replace(records[-1], after=("5",))
    assert circle({one.id: one for one in records}, last) == ""
    first = replace(records[0], after=("99999",))
    assert circle({one.id: one for one in records}, first) == "99999"
    steps = [
        record(seq, str(seq), False, frozenset(range(max(0, seq // 2 * 2 - 2), seq // 2 * 2))) for seq in range(120)
    ]
    assert circle({one.id: one for one in steps}, replace(steps[-1], after=("116", "117"))) == "", "not each way alone"
    alone = msgspec.structs.replace(records[0].submission, name="b")
    assert circle({one.id: one for one in records}, replace(first, submission=alone)) == ""
