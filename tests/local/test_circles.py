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
    job, through = circle({one.id: one for one in records}, {new.id: new})
    assert bool(job) is not all_end([*records[:place], new, *records[place + 1 :]])
    assert job in ("", new.id) and through in {"", *(one.id for one in records)}
    if job:
        waits = set(new.ahead) | {one.id for one in records if new.submission.singleton and one.seq < new.seq}
        assert through in waits, "the first step of the way"


@given(st.data())
def test_several_jobs_that_change_together_wait_for_each_other_or_not(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 6))
    records = [record(seq, "a", False, frozenset()) for seq in range(count)]
    others = st.frozensets(st.integers(0, count), max_size=2)
    changed = {str(seq): record(seq, "a", data.draw(st.booleans()), data.draw(others)) for seq in range(1, count)}
    job, through = circle({one.id: one for one in records}, changed)
    assert bool(job) is not all_end([records[0], *changed.values()])
    assert not job or (job in changed and through in {one.id for one in records})


def test_who_is_in_the_circle_is_found_wherever_one_begins_to_look() -> None:
    records = {str(seq): record(seq, "a", seq == 2, frozenset()) for seq in range(5)}
    changed = {"1": replace(records["1"], after=("3",)), "3": replace(records["3"], after=("4",))}
    assert circle(records, changed) == ("", "")
    changed["4"] = replace(records["4"], after=("3",))
    assert circle(records, changed) == ("3", "4"), "behind 1, which is in none"
    assert circle(records, {"0": replace(records["0"], after=("2",))}) == ("0", "2"), "2 waits for all before it"


def test_twenty_thousand_jobs_are_followed_once() -> None:
    """Each step is taken once, however many ways lead to it, and however many jobs change together."""
    alike = {str(seq): record(seq, "a", True, frozenset()) for seq in range(20_000)}
    assert circle(alike, {"19999": replace(alike["19999"], after=("5",))}) == ("", "")
    assert circle(alike, {"0": replace(alike["0"], after=("19999",))}) == ("0", "19999")
    alone = msgspec.structs.replace(alike["0"].submission, name="b")
    assert circle(alike, {"0": replace(alike["0"], submission=alone, after=("19999",))}) == ("", "")
    assert circle(alike, alike) == ("", "")
    steps = {
        str(seq): record(seq, str(seq), False, frozenset(range(max(0, seq // 2 * 2 - 2), seq // 2 * 2)))
        for seq in range(120)
    }
    assert circle(steps, {"119": replace(steps["119"], after=("116", "117"))}) == ("", "")
