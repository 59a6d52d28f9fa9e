"""What the record says of tenants, and how it is found."""

from __future__ import annotations

from statistics import median

from hypothesis import given
from hypothesis import strategies as st
from tests.ops.worlds import desk, small

from kant.model.units import HOUR
from kant.ops import look
from kant.ops.habits import EndedJob, Habit, Habits, habits_of
from kant.ops.orders import Cancel, Preempt
from kant.service.roles import Caller, Role

JOBS = st.lists(
    st.builds(
        EndedJob, user=st.sampled_from(["ana", "bob"]), queue=st.sampled_from(["train", "infer"]),
        gpus=st.sampled_from([1.0, 8.0]), limit_us=st.sampled_from([-1, 10, 1000]), ran_us=st.integers(1, 1000),
        end=st.sampled_from(["finished", "failed", "cancelled"]), stops=st.integers(0, 2), failures=st.integers(0, 1),
    ),
    max_size=12,
)  # fmt: skip


@given(JOBS)
def test_habits_are_counts_and_medians_of_the_jobs_of_each_user(jobs: list[EndedJob]) -> None:
    found = habits_of(jobs)
    for user in ("ana", "bob"):
        own = [job for job in jobs if job.user == user]
        got = {about: [each for each in found if (each.user, each.about) == (user, about)] for about in ABOUT}
        shares = [job.ran_us / job.limit_us for job in own if job.limit_us > 0 and job.end == "finished"]
        honest = [(round(median(shares), 4), len(shares))] if shares else []
        assert [(each.value, each.jobs) for each in got["limit"]] == honest
        assert {each.value: each.jobs for each in got["shape"]} == {
            gpus: sum(job.gpus == gpus for job in own) for gpus in {job.gpus for job in own}
        }
        assert sum(each.jobs for each in got["queue"]) == len(own)
        failed = [job for job in own if job.end == "failed" or job.failures]
        assert [each.jobs for each in got["failures"]] == [len(failed)] * bool(failed)
        stopped = [job for job in own if job.stops]
        done = sum(job.end == "finished" for job in stopped)
        borne = [(done / len(stopped), len(stopped))] if stopped else []
        assert [(each.value, each.jobs) for each in got["stops"]] == borne
        assert len(got["length"]) == bool(own)


ABOUT = ("limit", "shape", "queue", "length", "failures", "stops")


def many(users: int) -> list[Habit]:
    return [
        Habit(f"user-{number}", about, 0.5, 10, f"{about} of user-{number} is 0.5 for all of its jobs")
        for number in range(users)
        for about in ("limit", "shape", "queue", "length", "failures")
    ]


def test_of_ten_thousand_facts_the_right_one_is_found_by_a_look_at_few() -> None:
    found = Habits(many(2000))
    assert len(found.facts) == 10_000
    wanted = found.facts[6170]
    assert (wanted.user, wanted.about) == ("user-1234", "limit")
    assert found.find("how long is the limit of user-1234?", 1) == [wanted]
    assert found.looked_at <= 16
    assert {each.user for each in found.find("shape of user-7 and user-8", 2)} == {"user-7", "user-8"}
    assert found.looked_at <= 40
    assert found.find("nothing about this") == []
    assert len(found.find("limit", 20)) == 20
    assert found.looked_at <= 240


def test_an_assistant_asks_for_the_habits_of_a_user() -> None:
    world = small()
    world.carry_out(Preempt("big"), Caller("olga", Role.OPERATOR))
    world.settle()
    world.step(world.now() + HOUR)
    world.carry_out(Cancel("t1"), Caller("olga", Role.OPERATOR))
    world.settle()
    world.step(100 * HOUR)
    rows = {(row["user"], row["about"]): row for row in look.habits(desk(world), "limits and stops of dan")["habits"]}
    assert rows["dan", "shape"]["value"] == 16.0
    assert rows["dan", "stops"]["value"] == 1.0
    assert rows["dan", "length"]["value"] >= 120
    ended = {job.user: job for job in world.ended()}
    assert ended["ana"].end == "cancelled"
    assert ended["cat"].ran_us == 10 * HOUR
    assert ended["bob"].stops >= 1
