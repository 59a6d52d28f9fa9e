"""Services of a cluster: forecasts that know no future, scalers, and replicas that go through the queue."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples
from tests.serving.test_capacity import service

from kant.live.profile_file import read_profile
from kant.model.errors import InputError
from kant.model.units import MINUTE, SECOND
from kant.scheduler.profile import Profile
from kant.serving.capacity import CapacityCurve
from kant.serving.forecast import DAY, Rhythm, Seen, Written
from kant.serving.judging import by_capacity, judged
from kant.serving.rates import drawn_counts, read_rates
from kant.serving.removal_price import LateShares, RemovalPrice, prices
from kant.serving.scaling import Foresight, Static, Utilisation
from kant.serving.services_file import Declared, ServiceTable, read_services
from kant.sim.replay import replay
from kant.sim.run import RunHooks, simulate
from kant.testing import make_cluster, make_jobs

CURVE = CapacityCurve((1, 2, 4), (1.0, 2.5, 6.0))


def table(**fields: Any) -> ServiceTable:
    given = {"name": "service-chat", "model": "llama-3-8b", "gpu": "a100", "ttft_s": 2, "tpot_s": 0.1, "traffic": ""}
    return ServiceTable(**{**given, **fields})


def named_profile(name: str) -> Profile:
    return read_profile(name, "test")


class Drawn:
    """A scaler that says what was drawn, question by question."""

    def __init__(self, numbers: list[int], every_s: int = 60) -> None:
        self.numbers, self.every_s = numbers, every_s

    def wanted(self, now: int, count: int) -> int:
        return self.numbers[now * 60 // self.every_s % len(self.numbers)]


# --- forecasts ---------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(2 * DAY, 4 * DAY), st.integers(0, 300))
@settings(max_examples=examples(40), deadline=None)
def test_a_forecast_uses_nothing_that_has_not_happened(seed: int, history: int, now: int) -> None:
    draw = np.random.default_rng(seed)
    seen = draw.random(history + 400) * 10
    other = seen.copy()
    other[history + now :] = draw.random(400 - now) * 1000
    forecasts = (Rhythm(values, history, 0.9, 7).most(now, now, now + 30) for values in (seen, other))
    assert next(forecasts) == next(forecasts)


def test_a_rhythm_that_repeats_is_forecast_as_it_is_and_a_louder_day_is_noticed() -> None:
    day = 10 + 5 * np.sin(np.arange(DAY) * 2 * np.pi / DAY)
    plain = Rhythm(np.tile(day, 5), 4 * DAY, 0.98, 7)
    for now in (0, 400, 1000):
        assert plain.most(now, now, now + 20) == pytest.approx(day[now : now + 20].max(), rel=0.02)
    loud = Rhythm(np.concatenate([np.tile(day, 4), 2 * day]), 4 * DAY, 0.98, 7)
    assert loud.most(600, 600, 620) == pytest.approx(2 * day[600:620].max(), rel=0.02)


def test_a_written_forecast_is_what_is_written_and_its_last_minute_goes_on() -> None:
    written = Written(np.array([1.0, 3.0, 2.0]), 1.5)
    assert [written.most(0, begin, begin + 2) for begin in range(4)] == [4.5, 4.5, 3.0, 3.0]


@given(
    st.integers(0, 2**32 - 1), st.integers(0, 200), st.integers(0, 90), st.integers(1, 30), st.integers(0, 50)
)  # fmt: skip
@settings(max_examples=examples(60), deadline=None)
def test_what_is_seen_never_lowers_a_forecast_and_is_all_of_the_past(
    seed: int, now: int, ahead: int, span: int, first: int
) -> None:
    draw = np.random.default_rng(seed)
    said, seen = Written(draw.random(300) * 5), draw.random(250) * 20
    other = seen.copy()
    other[max(now - first, 0) :] = draw.random(len(other[max(now - first, 0) :])) * 1000
    plain = said.most(now, now + ahead, now + ahead + span)
    found = Seen(said, seen, first).most(now, now + ahead, now + ahead + span)
    assert found == Seen(said, other, first).most(now, now + ahead, now + ahead + span)  # not of the future
    minute = now - first - 1
    assert Seen(said, other, first).latest(now) == (seen[minute] if minute >= 0 else 0)
    known = seen[max(now - 10 - first, 0) : max(now - first, 0)]
    if ahead > 60 or len(known) == 0:
        assert found == plain
    else:
        assert found >= max(plain, known.max())


def test_three_times_what_was_forecast_is_expected_three_times_and_rises_as_forecast() -> None:
    wave = 10 + 5 * np.sin(np.arange(2 * DAY) * 2 * np.pi / DAY)
    seen = Seen(Written(wave), 3 * wave)
    for now in (300, 700, 1300, 1500, 2000):
        assert seen.most(now, now, now + 20) == pytest.approx(3 * wave[now - 10 : now + 20].max(), rel=0.05)
        assert seen.most(now, now, now + 20) >= 0.999 * 3 * wave[now - 10 : now + 20].max()  # it rises as forecast
        assert Seen(Written(wave), 0.1 * wave).most(now, now, now + 20) == wave[now : now + 20].max()
    noisy = 3 * wave * (1 + 0.2 * np.random.default_rng(1).standard_normal(2 * DAY))
    asked = np.array([Seen(Written(wave), noisy).most(now, now, now + 8) for now in range(1000, 2600, 10)])
    came = np.array([noisy[now + 7] for now in range(1000, 2600, 10)])
    assert (came <= asked).mean() > 0.95  # its margin covers the noise that it has seen


# --- scalers -----------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 40), min_size=1, max_size=60), st.integers(0, 59), st.integers(1, 30), st.floats(0, 10))
def test_more_is_forecast_more_is_had_and_what_is_forecast_is_borne(
    rates: list[float], now: int, count: int, more: float
) -> None:
    few, many = (Foresight(CURVE, Written(np.array(rates) + extra)).wanted(now, count) for extra in (0.0, more))
    assert few <= many
    last = len(rates) - 1
    soon = max(rates[min(now, last) : min(now + 7, last + 1)])
    assert CURVE.at(few) >= soon


def test_more_than_the_replicas_bear_is_answered_in_the_next_minute() -> None:
    """Five minutes between two calls, and four times the forecast from minute 6 on."""
    seen = np.where(np.arange(12) < 6, 0.5, 2.0)
    said, lines = np.full(12, 0.5), list[bytes]()
    for forecast, minute in ((Seen(Written(said), seen), 7), (Written(said), None)):
        scaler = Foresight(CURVE, forecast)
        declared = Declared(table(most=2), service(), CURVE, 1, 60 * seen, scaler)
        lines.clear()
        simulate(
            make_jobs(submit=[0], runtime=[9000], gpus=[2]), make_cluster(4), named_profile("kant"),
            hooks=RunHooks(journal=lines.append), services=[declared],
        )  # fmt: skip
        events = [json.loads(line) for line in b"".join(lines).splitlines()[1:]]
        bursts = [e["time"] // MINUTE for e in events if e["event"] == "submitted" and "-burst-" in e["job"]["id"]]
        assert bursts == ([] if minute is None else [minute])


def test_a_utilisation_is_kept_and_given_back_after_five_minutes() -> None:
    seen = np.array([7.0] * 10 + [3.5] * 10)
    scaler = Utilisation(1.0, seen, 0.7)
    assert scaler.wanted(1, 5) == 10 and scaler.wanted(1, 10) == 10
    assert scaler.wanted(1, 11) == 11  # within a tenth
    assert [scaler.wanted(now, 10) for now in (11, 14, 15)] == [10, 10, 5]
    assert Static(4).wanted(3, 1) == 4


# --- in a cluster ------------------------------------------------------------------------------------------------


def replicas_by_minute(lines: list[bytes], declared: Declared) -> np.ndarray:
    """Read from the journal alone: replicas that serve throughout each minute, each a pod of the service."""
    begun: dict[str, int] = {}
    pods: dict[str, int] = {}
    spans = []
    name, after, drains = declared.name, declared.table.start_s * SECOND, declared.table.drain_s * SECOND
    for line in lines[1:]:
        event = json.loads(line)
        if event.get("event") == "submitted":
            pods[event["job"]["id"]] = event["job"]["groups"][0][0]
        job = event.get("job", "")
        if not isinstance(job, str) or not (job == name or job.startswith(f"{name}-burst-")):
            continue
        if event["event"] == "started":
            begun[job] = event["time"]
        elif job in begun:
            end = event["time"] - (drains if event["event"] == "cancelled" else 0)
            spans.append((begun.pop(job) + after, end, pods[job]))
    minutes = range(len(declared.counts))
    return np.array([sum(n for a, b, n in spans if a <= m * MINUTE and b >= (m + 1) * MINUTE) for m in minutes])


@pytest.mark.long
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 3), st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 1500), st.integers(60, 2000), st.integers(1, 4), st.booleans()), max_size=12),
    st.sampled_from(["kant", "fifo-best-effort", "easy", "e-spread"]), st.sampled_from([0, 30, 90]),
)  # fmt: skip
@settings(max_examples=examples(6), deadline=None)
def test_replicas_go_through_the_queue_and_the_core_is_never_touched(
    numbers: list[int], core: int, more: int, jobs: list[tuple[int, int, int, bool]], profile: str, drain: int
) -> None:
    counts, curve = np.full(30, 6.0), CapacityCurve((1,), (0.08,))  # two replicas bear six a minute
    declared = Declared(
        table(core=core, most=core + more, start_s=60, drain_s=drain), service(), curve, 1, counts,
        Drawn(numbers, 300),
    )  # fmt: skip
    jobs.sort()
    workload = make_jobs(
        submit=[job[0] for job in jobs], runtime=[job[1] for job in jobs], gpus=[job[2] for job in jobs],
        preemptible=[int(job[3]) for job in jobs],
    )  # fmt: skip
    lines: list[bytes] = []
    cluster, chosen = make_cluster(4, 4, 4), named_profile(profile)
    result = simulate(
        workload, cluster, chosen, seed=3, hooks=RunHooks(journal=lines.append), services=[declared]
    )  # fmt: skip
    events = [json.loads(line) for line in b"".join(lines).splitlines()]
    stopped = [event["job"] for event in events if event.get("event") == "preempted"]
    assert declared.name not in stopped
    kept = {f"{name}" for name, job in zip(workload.ids, jobs, strict=True) if not job[3]}
    assert not kept & set(stopped)
    if chosen.preemption is None:
        assert not stopped
    # The core is there from its start to the end of the traffic, and there are never more than allowed.
    found = result.summary["services"][0]
    assert found["replicas"]["min"] <= core <= found["replicas"]["max"] or not jobs or found["replicas"]["max"] <= core
    served = replicas_by_minute(b"".join(lines).splitlines(), declared)
    assert found["replicas"]["max"] == served.max() and found["replicas"]["min"] == served.min()
    assert found["replicas"]["mean"] == pytest.approx(served.mean())
    assert served.max() <= core + more
    started = next(
        event["time"] for event in events if event.get("event") == "started" and event["job"] == declared.name
    )
    assert (served[started // MINUTE + 2 :] >= core).all()
    assert found["kept_by_capacity"] == pytest.approx(np.mean([counts[0] <= 60 * curve.at(int(n)) for n in served]))
    again = simulate(workload, cluster, chosen, seed=3, services=[declared])
    assert again.summary["digest"] == result.summary["digest"]
    assert again.summary["services"] == result.summary["services"]


def test_what_nobody_needs_trains(tmp_path: Path) -> None:
    """A job that fits only beside few replicas runs when there are few, and gives way when there are many."""
    declared = Declared(table(core=1, most=4), service(), CURVE, 1, np.full(120, 6.0), Drawn([1, 4], 3600))
    workload = make_jobs(submit=[60], runtime=[3 * 3600], gpus=[3])
    lines: list[bytes] = []
    simulate(workload, make_cluster(4), named_profile("kant"), hooks=RunHooks(journal=lines.append),
             services=[declared])  # fmt: skip
    events = [json.loads(line) for line in b"".join(lines).splitlines()]
    train = [(event["time"], event["event"]) for event in events if event.get("job") == workload.ids[0]]
    assert [what for _, what in train] == ["started", "preempted", "started", "finished"]
    assert train[0][0] == 60 * SECOND and train[1][0] == 3600 * SECOND and train[2][0] == 7200 * SECOND
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(b"".join(lines))
    assert replay(journal).equal


def test_the_inference_zone_follows_the_replicas() -> None:
    """Under e-spread replicas of a service lie in as few leaves as the zone needs, which grow and shrink with them."""
    declared = Declared(
        table(core=2, most=12, start_s=0), service(), CURVE, 1, np.full(180, 6.0), Drawn([2, 12, 2], 3600)
    )
    lines: list[bytes] = []
    cluster = make_cluster(*[4] * 12, leaf=2)
    simulate(make_jobs(submit=[0], runtime=[60], gpus=[1]), cluster, named_profile("e-spread"),
             hooks=RunHooks(journal=lines.append), services=[declared])  # fmt: skip
    held: dict[str, set[int]] = {}
    by_hour: dict[int, int] = {}
    for event in (json.loads(line) for line in b"".join(lines).splitlines()[1:]):
        job = event.get("job")
        if event.get("event") == "started" and job.startswith("service"):
            held[job] = {piece[0] for piece in event["allocation"]}
        elif event.get("event") in ("cancelled", "finished"):
            held.pop(job, None)
        by_hour[event.get("time", 0) // (3600 * SECOND)] = len(set().union(*held.values()) if held else set())
    assert by_hour[0] == 2 < by_hour[1] and by_hour[2] < by_hour[1]


class Dear:
    """A price by the number of replicas alone: the fewer are left, the dearer; of some services nothing is dear."""

    def __init__(self, times: int) -> None:
        self.times = times

    def at(self, n: int, rate: float) -> int:
        return self.times * 1000 // n


def test_a_replica_that_costs_little_is_taken_first(tmp_path: Path) -> None:
    """Whichever service is cheaper gives a replica to who may stop it, as long as it is cheaper."""
    given = {"core": 1, "most": 4, "start_s": 0}
    for dear, cheap in (("a", "b"), ("b", "a")):
        prices = {dear: Dear(100), cheap: Dear(1)}
        both = [
            replace(Declared(table(name=name, **given), service(), CURVE, 1, np.full(120, 6.0), Drawn([3], 3600)),
                    price=prices[name])
            for name in ("a", "b")
        ]  # fmt: skip
        workload = make_jobs(submit=[1800, 1860], runtime=[600, 600], gpus=[2, 1], priority=[75, 75])
        lines: list[bytes] = []
        result = simulate(workload, make_cluster(6), named_profile("kant"), hooks=RunHooks(journal=lines.append),
                          services=both)  # fmt: skip
        events = [json.loads(line) for line in b"".join(lines).splitlines()]
        stopped = [event["job"] for event in events if event.get("event") == "preempted"]
        assert [name.split("-")[0] for name in stopped] == [cheap, cheap, dear]
        journal = tmp_path / "journal.jsonl"
        journal.write_bytes(b"".join(lines))
        assert replay(journal).equal and result.summary["preemptions"] == 3


@given(st.integers(1, 8), st.integers(0, 8), st.floats(0, 30), st.floats(0, 10))
def test_more_requests_and_fewer_replicas_never_make_a_replica_cheaper(
    core: int, bursts: int, rate: float, more: float
) -> None:
    price = RemovalPrice(LateShares((0.7, 1.0, 1.3), (0.0, 0.1, 0.6)), CURVE, 1, 420.0)
    each = prices(price.at, core + bursts, bursts, rate)
    assert each == sorted(each) and len(each) == bursts
    assert price.at(core, rate) <= price.at(core, rate + more)
    assert price.at(core + 4, 0.0) == 0


# --- judging -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 6)), min_size=1, max_size=8))
@settings(max_examples=examples(20), deadline=None)
def test_a_sample_of_all_minutes_is_what_the_engine_says(rows: list[tuple[int, int]]) -> None:
    counts, replicas = np.array([float(n) for n, _ in rows]), np.array([n for _, n in rows])
    found = judged(service(), CURVE, counts, replicas, 100 * len(rows), 0)
    assert found.judged == len(rows) and found.error == 0
    for minute, (count, n) in enumerate(rows):
        assert by_capacity(counts, replicas, CURVE)[minute] == (count <= 60 * CURVE.at(n))
    assert 0 <= found.share <= 1 and (found.share < 1 or all(n or not count for count, n in rows))


# --- files -------------------------------------------------------------------------------------------------------

CHAT = """
[[service]]
name = "chat"
model = "llama-3-8b"
gpu = "a100"
ttft_s = 2
tpot_s = 0.1
traffic = "chat.csv"
capacity = [[1, 3.9], [2, 9.6], [4, 23]]
"""


def written(folder: Path, text: str) -> Path:
    (folder / "chat.csv").write_text("hour,rate\n" + "".join(f"{h},{4 + h}\n" for h in range(2)))
    (folder / "before.csv").write_text("hour,rate\n" + "".join(f"{h},{4 + h % 24}\n" for h in range(72)))
    (folder / "services.toml").write_text(text)
    return folder / "services.toml"


def test_a_file_of_services_is_read(tmp_path: Path) -> None:
    (found,) = read_services(written(tmp_path, CHAT + 'history = "before.csv"\n'))
    assert found.gpus == 1 and len(found.counts) == 120 and found.curve.at(2) == 9.6
    assert found.wanted(0, 1) >= 1 and found.overrun(80, 1) and not found.overrun(80, 2)  # 5 came, one bears 3.9
    assert read_rates(tmp_path / "chat.csv").tolist() == [4.0] * 60 + [5.0] * 60
    assert drawn_counts(np.full(2000, 5.0), 0).mean() == pytest.approx(300, rel=0.01)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at least one [[service]]"),
        ("[[service]]\nname = 1", "[[service]] 1, name: expected text, got 1"),
        ("x", "TOML"),
        (CHAT, "either a forecast or a history"),
        (CHAT + 'history = "nowhere.csv"\n', "nowhere.csv"),
        (CHAT + 'history = "chat.csv"\n', "service chat: history: expected at least two days"),
        (CHAT + 'history = "before.csv"\nobjectives = 1\n', "objectives"),
        (CHAT + 'history = "before.csv"\ncore = 0\n', "service chat: core: expected 1 to 10000 replicas, got 0"),
        (CHAT + 'history = "before.csv"\nprice = "free"\n', "price"),
        (CHAT + 'history = "before.csv"\nevery_s = 90\n', "every_s: expected whole minutes"),
        (CHAT + 'scale = "static"\n', "replicas: expected a number if scale is static, and only then"),
        (CHAT + 'forecast = "chat.csv"\nscale = "utilisation"\n', "scale: expected forecast"),
        (CHAT.replace("llama-3-8b", "gpt") + 'history = "before.csv"\n', "service chat: model: expected one of"),
        (CHAT.replace("ttft_s = 2", "ttft_s = 0") + 'history = "before.csv"\n', "service chat: ttft: expected"),
        (CHAT.replace("[1, 3.9], ", "") + 'history = "before.csv"\n', "service chat: capacity: expected pairs"),
        (CHAT + 'history = "before.csv"\n' + CHAT + 'history = "before.csv"\n', "services with different names"),
    ],
)
def test_a_file_of_services_that_makes_no_sense_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]*$") as caught:
        read_services(written(tmp_path, text))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("minute,rate\n0,1\n2,1\n", ":3: minute: expected 1: rows count from 0"),
        ("minute,rate\n0,-1\n", ":2: rate: expected requests a second"),
        ("minute,rate\n0,nan\n", ":2: rate: expected requests a second"),
        ("day,rate\n0,1\n", "header: expected hour,rate or minute,rate"),
        ("minute,rate\n", "expected rates for a minute to a year"),
    ],
)
def test_rates_that_make_no_sense_are_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "rates.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        read_rates(tmp_path / "rates.csv")
    assert says in str(caught.value)


@pytest.mark.long
def test_the_command_says_what_became_of_the_services(tmp_path: Path) -> None:
    file = written(tmp_path, CHAT + 'history = "before.csv"\n')
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("id,submit_s,runtime_s,gpus\na,0,600,4\n")
    words = ("simulate", jobs, "--cluster", "1x8", "--services", file)
    (found,) = kant(*words, "--json").json()["services"]
    assert found["service"] == "chat" and found["minutes"] == 120 and found["gpu_hours"] > 2
    assert found["engine"]["judged"] > 10 and found["kept_by_capacity"] > 0.9
    assert "judged" in kant(*words).out
    both = ("compare", *words[1:], "--profile", "fifo", "--profile", "kant", "--out", tmp_path / "both", "--json")
    runs = kant(*both).json()["runs"]
    assert [run["services"][0]["requests"] for run in runs] == [found["requests"]] * 2
    assert runs[1]["services"] == [found]
    assert "supports burst replicas" in kant(*words, "--profile", "srtf").refusal()
    jobs.write_text("id,submit_s,runtime_s,gpus\nchat,0,600,4\n")
    assert "with other names than services" in kant(*words).refusal()
    (tmp_path / "queues.toml").write_text('[[queue]]\nname = "train"\ngpus = 8\n')
    jobs.write_text("id,submit_s,runtime_s,gpus,queue\na,0,600,4,train\n")
    assert "service chat: queue" in kant(*words, "--queues", tmp_path / "queues.toml").refusal()
