"""A Kant that starts again knows how long jobs ran under the one before it."""

from __future__ import annotations

from pathlib import Path

from tests.local.up import Up, eventually


def test_run_times_of_earlier_days_are_known_after_a_restart(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Up(home, "1x4") as kant:
        jobs = [kant.submit("true", gpus=0) for _ in range(10)]
        assert all(kant.over(job) == ["finished"] for job in jobs)
    with Up(home, "1x4") as kant:
        kant.submit("sleep 60", gpus=4)
        waits = kant.submit("true", gpus=4)
        assert eventually(lambda: kant.phase(waits) == "waiting")
        (row,) = kant.client.get("/v1/eta")["jobs"]
        assert row["job"] == waits and row["expected_us"]["p50"] is not None, "nobody has said how long the first runs"
