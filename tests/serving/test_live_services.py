"""Services of a real cluster: what is counted of their requests, and how many replicas follow."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.model.errors import InputError
from kant.service.replicas import ServiceReplica, missing, surplus
from kant.serving.forecast import DAY, Written
from kant.serving.live_services import read_live_services
from kant.serving.traffic import Traffic

BEGINS = datetime(2026, 11, 23, tzinfo=UTC)
MINUTE = int(BEGINS.timestamp()) // 60
NOW = BEGINS.timestamp()
TABLE = """
[[service]]
name = "chat"
model = "llama-3-8b"
gpu = "a100"
ttft_s = 2
tpot_s = 0.1
core = 1
most = 4
capacity = [[1, 1.0], [2, 2.5], [4, 6.0]]
"""


def written(folder: Path, more: str) -> Path:
    """A file of one service."""
    file = folder / "services.toml"
    file.write_text(TABLE + more)
    (folder / "day.csv").write_text("hour,rate\n" + "".join(f"{h},{[0.5, 4.0][h >= 12]}\n" for h in range(24)))
    return file


# --- what comes ------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0.1, 400), st.integers(0, 500)), min_size=1, max_size=20))
def test_what_is_counted_is_all_that_came_each_in_its_time(steps: list[tuple[float, int]]) -> None:
    traffic, now, total = Traffic(), NOW, 7.0
    traffic.note(now, total)
    for seconds, came in steps:
        now, total = now + seconds, total + came
        traffic.note(now, total)
    assert sum(traffic.counts.values()) == pytest.approx(total - 7, abs=1e-6)
    assert all(NOW // 60 <= minute <= now // 60 for minute in traffic.counts)


def test_what_was_counted_is_known_after_a_restart_and_a_gap_is_as_the_day_before(tmp_path: Path) -> None:
    file = tmp_path / "chat.csv"
    before = np.arange(DAY) / 10
    traffic = Traffic(file, before, MINUTE - DAY)
    for k in range(11):
        traffic.note(NOW + 60 * k, 120.0 * k)
    traffic.note(NOW + 660, 60.0)  # a router that has begun again
    again = Traffic(file, before, MINUTE - DAY)
    rates = again.rates(MINUTE + 30)
    assert rates[:DAY] == pytest.approx(before)
    assert rates[DAY : DAY + 10] == pytest.approx([2.0] * 10)
    assert rates[DAY + 10] == pytest.approx(1.0)
    assert rates[DAY + 11 :] == pytest.approx(before[11:30])
    file.write_text("no numbers\n")
    with pytest.raises(InputError, match=r"chat\.csv:1: expected a minute"):
        Traffic(file)


def test_a_forecast_of_a_day_comes_every_day() -> None:
    day = Written(np.arange(DAY, dtype=float), again=True)
    assert day.most(0, DAY + 5, DAY + 8) == day.most(0, 5, 8) == 7
    assert day.most(0, -1, 3) == DAY - 1


# --- how many replicas -----------------------------------------------------------------------------------------------


def test_a_written_forecast_is_followed_and_said_for_the_hours_to_come(tmp_path: Path) -> None:
    file = written(tmp_path, 'forecast = "day.csv"\nbegins = 2026-11-23T00:00:00Z\n')
    (service,) = read_live_services(file, NOW, tmp_path)
    assert [row["replicas"] for row in service.ahead(NOW + 10 * 3600, 4)] == [1, 1, 3, 3]
    assert service.wanted(NOW + 3600, 1) == 1 and service.wanted(NOW + 11.95 * 3600, 1) == 3
    assert service.wanted(NOW + 7 * 24 * 3600 + 13 * 3600, 1) == 3


def test_a_learned_forecast_knows_what_the_routers_count(tmp_path: Path) -> None:
    (tmp_path / "before.csv").write_text(
        "hour,rate\n" + "".join(f"{h},{[0.5, 4.0][h % 24 >= 12]}\n" for h in range(72))
    )
    more = 'history = "before.csv"\nbegins = 2026-11-20T00:00:00Z\noperators = ["http://127.0.0.1:9"]\n'
    (service,) = read_live_services(written(tmp_path, more), NOW, tmp_path)
    assert service.wanted(NOW + 3600, 1) == 1 and service.wanted(NOW + 13 * 3600, 1) == 3
    service.traffic.note(NOW + 3600, 0)
    service.traffic.note(NOW + 3600 + 1800, 1800 * 2.0)  # four times as many as usual
    assert service.wanted(NOW + 3600 + 1800, 1) == 2 and not service.overrun(NOW + 3600 + 1800, 2)
    service.traffic.note(NOW + 3600 + 1860, 1800 * 2.0 + 60 * 4.0)  # the last minute twice as many again
    assert service.overrun(NOW + 3600 + 1860, 2) and service.wanted(NOW + 3600 + 1860, 2) == 3


def test_a_utilisation_is_kept_by_what_the_routers_count(tmp_path: Path) -> None:
    more = 'scale = "utilisation"\noperators = ["http://127.0.0.1:9"]\n'
    (service,) = read_live_services(written(tmp_path, more), NOW, tmp_path)
    for k in range(8):
        service.traffic.note(NOW + 60 * k, 60 * 4.0 * k)
    assert service.wanted(NOW + 420, 1) == 4  # 4/s of 1.5/s each at 0.7
    with pytest.raises(InputError, match="scale: expected forecast, or static"):
        service.ahead(NOW, 2)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ('forecast = "day.csv"\n', "service chat: begins: expected the TOML time at which the first row"),
        ('scale = "static"\nreplicas = 2\nbegins = 2026-11-23T00:00:00Z\n', "begins: expected a forecast or a history"),
        ('scale = "utilisation"\n', "service chat: operators: expected the operator addresses of the routers"),
        ('history = "day.csv"\nbegins = 2026-11-23T00:00:00Z\n', "history: expected only past days"),
        (
            'history = "day.csv"\nbegins = 2026-11-21T00:00:00Z\noperators = ["http://127.0.0.1:9"]\n',
            "history: expected at least two days",
        ),
    ],
)
def test_an_objective_that_cannot_be_kept_is_refused_with_its_reason(tmp_path: Path, more: str, sentence: str) -> None:
    now = BEGINS.timestamp() - 24 * 3600 if "two days" in sentence else NOW
    with pytest.raises(InputError, match=sentence):
        read_live_services(written(tmp_path, more), now, tmp_path)


PHASES = st.sampled_from(["waiting", "running", "held", "blocked"])


THERE = st.lists(st.tuples(st.integers(0, 9), PHASES), max_size=10, unique_by=lambda at: at[0])


@given(THERE, st.integers(1, 3), st.integers(0, 9))
@settings(max_examples=examples(400))
def test_the_core_is_never_given_back_and_as_many_are_had_as_are_wanted(
    given: list[tuple[int, str]], core: int, wanted: int
) -> None:
    there = [ServiceReplica(number, str(seq), seq, phase) for seq, (number, phase) in enumerate(given)]
    gone = surplus(there, core, max(wanted, core))
    assert all(replica.number >= core for replica in gone)
    stays = [replica for replica in there if replica not in gone]
    if any(r.phase != "running" for r in stays if r.number >= core):
        assert all(r.phase != "running" for r in gone)
    taken = [replica.number for replica in gone]
    new = missing(stays, taken, core, wanted)
    numbers = [replica.number for replica in stays] + new
    assert len(set(numbers)) == len(numbers) and not set(new) & set(taken)
    assert set(range(core)) <= set(numbers) | set(taken)
    assert len(numbers) >= max(wanted, core) - len(taken)
