"""The power caps of machines and of all together: limits that starts, plans and explanations know, beside quotas."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.local.joined import Joined, free_port
from tests.local.up import Up, asked, eventually

from kant.local.power import PowerCaps, beside, capped, parse_watts, power_rules, powered, powered_by, read_caps, usable
from kant.model.errors import InputError
from kant.model.job import Demand, PodGroup
from kant.model.node import Node
from kant.service.client import RefusedError

SHARES = st.lists(st.one_of(st.integers(1, 8).map(lambda gpus: 1000 * gpus), st.integers(1, 999)), max_size=8)


@given(st.integers(1, 8), st.integers(1, 10_000), st.integers(1, 1500), SHARES)
def test_the_amount_is_exactly_the_cap(gpus: int, cap: int, watts: int, takes: list[int]) -> None:
    """Jobs keep to the amount if and only if they keep to the watts, and to the GPUs that there are."""
    if cap < watts:
        with pytest.raises(InputError, match=f"^--power-cap: expected at least {watts}W, the power of one GPU"):
            capped(Node("n", gpus), cap, watts)
        assert powered(capped(Node("n", 0), cap, watts)) == 0, "who has no GPU has no cap to keep"
        return
    node = capped(Node("n", gpus), cap, watts)
    assert (sum(takes) <= powered(node)) == (sum(takes) * watts <= cap * 1000 and sum(takes) <= gpus * 1000)
    most = powered(node)
    assert most * watts <= cap * 1000 and (most == gpus * 1000 or (most + 1) * watts > cap * 1000), "and not one less"
    (wide,) = usable([node])
    assert wide.gpus * watts <= cap and (wide.gpus == gpus or (wide.gpus + 1) * watts > cap)


def test_without_a_cap_nothing_is_asked() -> None:
    groups = (PodGroup(2, Demand(3)), PodGroup(1, Demand(1, 500)), PodGroup(1, Demand(0)))
    free, limited = Node("a", 8), capped(Node("b", 8), 2000, 700)
    assert power_rules(groups, [free]) == power_rules(groups[2:], [limited]) == ()
    assert [dict(rules.amounts) for rules in power_rules(groups, [free, limited])] == [
        {"power": 3000},
        {"power": 500},
        {},
    ]
    assert beside(free, [free]) == free and powered(beside(free, [limited])) == 8000
    assert beside(limited, [limited]) == limited and usable([free]) == [free]


@pytest.mark.parametrize(("text", "watts"), [("1400W", 1400), ("2.1kW", 2100), ("0.5 kW", 500)])
def test_watts(text: str, watts: int) -> None:
    assert parse_watts(text, "x") == watts


@pytest.mark.parametrize("text", ["", "1400", "0W", "-1W", "1MW", "W"])
def test_what_is_no_power_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="x: expected watts such as 1400W or"):
        parse_watts(text, "x")


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000), SHARES)
def test_the_amount_of_all_machines_is_exactly_their_cap(machine: int, pool: int, watts: int, takes: list[int]) -> None:
    """It is so for whatever jobs hold together, on whichever machines, and every fault of the caps is said."""
    given = (f"{machine}W", f"{pool}W", f"{watts}W")
    low = [name for name, cap in (("--power-cap", machine), ("--pool-power-cap", pool)) if cap < watts]
    if low:
        with pytest.raises(InputError) as refused:
            read_caps(*given, virtual=True)
        assert [
            name
            for name in ("--power-cap", "--pool-power-cap")
            if f"{name}: expected at least {watts}W" in str(refused.value)
        ] == low
        return
    assert read_caps(*given, virtual=True) == PowerCaps(machine, pool, watts)
    groups, most = (
        [PodGroup(1, Demand(-(-milli // 1000), min(milli, 1000))) for milli in takes],
        powered_by(pool, watts, "x"),
    )
    rules = [rule for own in power_rules(groups, [Node("n", 8)], most) for rule in own.shared]
    assert len(rules) == len(takes) and {limit for _, _, limit in rules} <= {most}
    assert (sum(each for _, each, _ in rules) <= most) == (sum(takes) * watts <= pool * 1000)


def test_options_that_do_not_go_together() -> None:
    assert "--gpu-watts: expected --power-cap or --pool-power-cap beside" in verb("up", "--gpu-watts", "1W").refusal()
    said = verb("up", "--power-cap", "2kW", "--cluster", "1x4").refusal()
    assert said == "kant: --gpu-watts: expected the power of one GPU, such as 700W, for a power cap with --cluster\n"
    watts = "expected watts such as 1400W or 2.1kW"
    said = verb("up", "--power-cap", "2", "--pool-power-cap", "x", "--gpu-watts", "7").refusal()
    assert (
        said
        == f"kant: --power-cap: {watts}, got '2'; --pool-power-cap: {watts}, got 'x'; --gpu-watts: {watts}, got '7'\n"
    )


def test_no_more_starts_than_the_cap_allows_and_every_answer_knows(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Up(home, "1x4", power=PowerCaps(1500, 0, 700)) as kant:  # two of four GPUs
        first = kant.submit("exec sleep 600", gpus=1.0, time_s=600)
        second = kant.submit("exec sleep 600", gpus=1.0, time_s=1200)
        none = kant.submit("echo $CUDA_VISIBLE_DEVICES", gpus=0)
        assert kant.over(none) == ["finished"], "what has no GPU takes no power"
        third = kant.submit("exec sleep 600", gpus=2.0, time_s=600)
        assert eventually(lambda: kant.phase(first) == kant.phase(second) == "running")

        def says() -> bool:
            why = verb("why", third, "--home", home).out
            return "1 node with room: not enough power" in why and f"job {second} ends" in why

        def waited() -> dict[str, int]:
            return dict(kant.client.get(f"/v1/jobs/{third}/why")["waited_us"])

        assert eventually(says) and eventually(lambda: waited().get("rules", 0) > 0)
        assert "fragmentation" not in waited()

        def ahead() -> float:
            found = kant.client.get(f"/v1/eta?job={third}")
            return ((found["jobs"][0]["expected_us"]["p90"] or 0) - found["time_us"]) / 1e6

        assert eventually(lambda: 1100 < ahead() <= 1200), "when the second job ends, though two GPUs are free"
        assert "by power cap" in verb("top", "--home", home).out
        urgent = kant.submit("exec sleep 600", gpus=2.0, priority=10)
        assert eventually(lambda: kant.phase(urgent) == "running"), "it takes the power of those below it"
        assert {kant.phase(job) for job in (first, second, third)} == {"waiting"}
        with pytest.raises(RefusedError, match="gpus: expected at most 2, the limit of the power cap"):
            kant.submit("true", gpus=3.0)


def test_one_cap_holds_for_all_machines_together(tmp_path: Path) -> None:
    """Five of eight GPUs on two machines may be in use, wherever they are."""
    home, port = tmp_path / "home", free_port()
    with Up(home, "1x4", power=PowerCaps(0, 3600, 700), join_listen=f"127.0.0.1:{port}") as kant:
        machine = Joined(tmp_path / "gpu2", home, port, "gpu2", 4)
        try:
            assert eventually(lambda: len(kant.client.get("/v1/top")["nodes"]) == 2)
            first = kant.submit("exec sleep 600", gpus=4.0, time_s=600)
            second = kant.submit("exec sleep 600", gpus=0.5, time_s=1200)
            half = kant.submit("exec sleep 600", gpus=0.5, time_s=1200)
            assert eventually(lambda: {kant.phase(job) for job in (first, second, half)} == {"running"})
            third = kant.submit("exec sleep 600", gpus=2.0, time_s=600)

            def says() -> bool:
                why = verb("why", third, "--home", home).out
                known = "not enough power of all machines" in why and f"job {first} ends" in why
                return known and "starts now if" in why and "more node" not in why  # another brings no power

            assert eventually(says)

            def ahead() -> float:
                found = kant.client.get(f"/v1/eta?job={third}")
                return ((found["jobs"][0]["expected_us"]["p90"] or 0) - found["time_us"]) / 1e6

            assert eventually(lambda: 500 < ahead() <= 600), "when the first job ends, though three GPUs are free"
            assert (
                "5 GPUs in use of the 5.142 that the power cap of all machines allows"
                in verb("top", "--home", home).out
            )
            urgent = kant.submit("exec sleep 600", gpus=5.0, priority=10)
            assert eventually(lambda: kant.phase(urgent) == "running"), "it takes the power of those below it"
            assert len(kant.job(urgent)["job"]["nodes"]) == 2
            assert {kant.phase(job) for job in (first, second, half, third)} == {"waiting"}
            most = "gpus: expected at most 5, the limit of the power cap of all machines"
            for ask in (
                kant.submit,
                lambda command, gpus: kant.client.post("/v1/eta", asked(home, command, gpus=gpus)),
            ):
                with pytest.raises(RefusedError, match=most):
                    ask("true", gpus=6.0)
        finally:
            machine.kill(15)
