"""What queues have used survives the end of a record: shares that forget go on as if nothing had been cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.test_usage import Change, changes, half_lives

from kant.cluster.journal import Header, Journal, read_lines
from kant.cluster.usage import UsageHours
from kant.live.core import Core
from kant.live.learned import learned_version, restore_calibration, saved_calibration
from kant.live.queue_use import MOST, SavedUse, note_of, read_note, use_of
from kant.model.errors import StateError
from kant.model.event import JobFinished, JobStarted, JobSubmitted, QueuesUsed, QueueUse
from kant.model.units import DAY, HOUR, SECOND
from kant.queueing.admission import Admission
from kant.queueing.shares import Shares
from kant.scheduler.profile import builtin_profile
from kant.sim.fork import fork
from kant.sim.past import read_past
from kant.sim.replay import replay
from kant.testing import make_cluster, make_job


@given(changes(), st.data(), half_lives)
def test_use_that_is_restored_on_another_clock_is_used_as_if_nothing_had_been_cut(
    changed: list[Change], data: st.DataObject, half_life: int
) -> None:
    cut = data.draw(st.integers(0, len(changed)))
    at = data.draw(st.integers(changed[cut - 1][2] if cut else 0, changed[cut][2])) if cut < len(changed) else (
        (changed[-1][2] if changed else 0) + data.draw(st.integers(0, DAY)))  # fmt: skip
    zero = data.draw(st.integers(0, at))
    whole, before, after = UsageHours(), UsageHours(), UsageHours()
    for change in changed[:cut]:
        whole.changed(*change)
        before.changed(*change)
    phase, used = before.used(at)
    for queue, milli in enumerate(before.running):  # what runs was there when the state was built anew
        after.changed(queue, milli, 0)
    after.restore(at - zero, phase, dict(enumerate(used)))
    for queue, delta, time in changed[cut:]:
        whole.changed(queue, delta, time)
        after.changed(queue, delta, time - zero)
    end = max(at, changed[-1][2] if changed else 0)
    for later in (0, HOUR // 2, DAY):
        known = after.decayed(end + later - zero, half_life).tolist()
        assert known == whole.decayed(end + later, half_life).tolist()


WRONG = (QueueUse(-1), QueueUse(0, ((0, 1),)), QueueUse(0, ((1, -1),)), QueueUse(0, ((10**6, 1),)))


@pytest.mark.parametrize("phase, use", [(-1, QueueUse(0)), (HOUR, QueueUse(0)), *((0, use) for use in WRONG)])
def test_use_that_cannot_be_is_refused_and_changes_nothing(phase: int, use: QueueUse) -> None:
    hours = UsageHours()
    hours.changed(0, 1000, 0)
    with pytest.raises(StateError, match="expected the GPU use of known queues"):
        hours.restore(HOUR, phase, {0: use})
    assert hours.decayed(HOUR, DAY).tolist() == [1000 * 3600 * 2**20 // 2**20 * int(2 ** (-1 / 24) * 2**20) // 2**20]


class Clock:
    """A clock that a test sets, seconds since the Unix epoch."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def core_of(clock: Clock, lines: list[bytes], zero: int | None = None) -> Core:
    spec = make_cluster(8)
    profile = builtin_profile("fair-share")
    began = int(clock() * 1e6) if zero is None else zero
    core = Core(spec, profile, lines.append, began, clock)
    core.settled()
    return core


def place(first: int, gpus: int) -> np.ndarray:
    return np.array([[0, 1, ((1 << gpus) - 1) << first, 1000, 0, 0, gpus]], dtype=np.int64)


def ranking(core: Core) -> list[str]:
    """The queues in the order in which their jobs go next."""
    shares = Shares(core.state, core.now, Admission(core.state, core.now))
    queues = core.state.queues
    return sorted(queues, key=lambda name: (core.profile.order.share(shares, queues[name]), name))


@pytest.mark.parametrize("way", ["restart", "new state", "after a while"])
def test_after_a_restart_queues_are_ranked_by_what_they_had_used(way: str) -> None:
    clock, lines = Clock(), list[bytes]()
    first = core_of(clock, lines)
    for queue in ("much", "little"):
        first.happen(JobSubmitted(0, make_job(queue, 4, queue=queue)))
    first.happen(JobStarted(0, "much", place(0, 4)))
    clock.now += 7200.5
    first.happen(JobFinished(first.now, "much"))
    first.happen(JobStarted(first.now, "little", place(0, 4)))
    clock.now += 600
    assert ranking(first) == ["little", "much"]
    saved, expected = saved_calibration(first), use_of(first.state, first.zero, first.now)
    assert learned_version(first)[2] > 0
    began = first.zero + int(7200.5 * SECOND)
    clock.now += 3600 if way == "after a while" else 0
    again = core_of(clock, lines, began)
    again.happen(JobSubmitted(0, make_job("little", 4, queue="little")))
    again.happen(JobStarted(0, "little", place(0, 4)))
    if way == "new state":
        again.inherit(first)
    else:
        restore_calibration(again, saved)
    use = use_of(again.state, again.zero, again.now)
    assert use is not None and expected is not None
    if way == "after a while":
        expected = use_of(first.state, first.zero, first.now)  # the clock has gone on, and so has the running job
        assert expected is not None
    assert (use.at, use.phase, dict(use.queues)) == (expected.at, expected.phase, dict(expected.queues))
    for name in ("much", "little"):
        again.happen(JobSubmitted(again.now, make_job(f"{name} again", queue=name)))
    assert ranking(again) == ["little", "much"]


def test_the_journal_says_it_and_a_state_made_of_the_journal_knows_it() -> None:
    lines: list[bytes] = []
    journal = Journal(lines.append)
    spec, profile = make_cluster(8), builtin_profile("fair-share")
    journal.write(Header("1", "w", profile.text, 0, spec))
    journal.write(QueuesUsed(5, 7, {"team": QueueUse(3, ((1, 1000), (600, 20)))}))
    _, event = read_lines(iter(lines), "f")
    assert isinstance(event, QueuesUsed)
    state = profile.new_state(spec)
    state.apply(event)
    assert list(state.queues) == ["team"]
    assert state.quota_usage.hours is not None
    assert state.quota_usage.hours.used(5) == (7, [event.queues["team"]])
    state.apply(JobSubmitted(6, make_job("j", queue="team")))
    state.check()


def test_a_what_if_begins_with_what_queues_had_used_before_the_journal(tmp_path: Path) -> None:
    """Both queues ask at once for the same GPUs: the one that had used less goes first, in the run and in its fork."""
    path, lines = tmp_path / "journal.jsonl", list[bytes]()
    journal, spec, profile = Journal(lines.append), make_cluster(4), builtin_profile("fair-share")
    journal.write(Header("1", "w", profile.text, 0, spec))
    journal.write(QueuesUsed(0, 0, {"a": QueueUse(0, ((5, 10**9),)), "b": QueueUse(0, ((1, 10**3),))}))
    journal.write(JobSubmitted(1, make_job("a", 4, queue="a"), 10 * SECOND))
    journal.write(JobSubmitted(1, make_job("b", 4, queue="b"), 10 * SECOND))
    journal.write(JobSubmitted(5 * SECOND, make_job("later", 1, queue="b"), 10 * SECOND))
    path.write_bytes(b"".join(lines))
    own = fork(read_past(path, 2))
    found = own.run.result(iter(own.coming), len(own.coming))
    starts = dict(zip(found.jobs.id, found.jobs.first_start.tolist(), strict=True))
    assert starts["a"] - starts["b"] >= 10 * SECOND, starts
    assert replay(path).equal


@given(st.integers(0, 60), st.integers(0, 671), st.integers(0, 2**32))
def test_a_note_is_short_and_loses_no_use(queues: int, hours: int, seed: int) -> None:
    draw = np.random.Generator(np.random.PCG64(seed))
    saved = SavedUse(
        1,
        2,
        {
            f"queue{i}": QueueUse(
                int(draw.integers(0, 10**12)),
                tuple((age, int(draw.integers(1, 10**7))) for age in range(1, hours + 1)),
            )
            for i in range(queues)
        },
    )
    text = note_of(saved)
    assert len(text) <= MOST and bool(text) == bool(queues)
    found = read_note(text)
    if found is None:
        assert not queues
        return
    assert (found.at, found.phase, list(found.queues)) == (1, 2, list(saved.queues))
    for name, use in saved.queues.items():
        own = found.queues[name]
        assert own.present == use.present
        assert sum(spent for _, spent in own.hours) == sum(spent for _, spent in use.hours)
        assert all(0 < age <= 671 for age, _ in own.hours)
    if queues * hours < 100:
        assert found == saved


@pytest.mark.parametrize("text", ["", "nonsense", "e30="])
def test_a_note_that_cannot_be_read_is_none(text: str) -> None:
    assert read_note(text) is None
