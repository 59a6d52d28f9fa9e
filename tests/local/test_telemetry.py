"""What Prometheus is told of this machine's Kant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.local.up import Up, eventually

DOCS = Path(__file__).parents[2] / "docs"


def scrape(kant: Up) -> dict[str, float]:
    """The samples by name and labels as they are written."""
    _, body = kant.client.stream("/metrics")
    lines = (line for line in b"".join(body).decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_a_scrape_says_how_the_machine_stands(tmp_path: Path) -> None:
    with Up(tmp_path / "home") as kant:
        runs = kant.submit("sleep 60", gpus=4)
        waits = kant.submit("true", gpus=8)
        ends = kant.submit("exit 3", gpus=1)
        assert kant.over(ends) == ["failed"]
        assert eventually(lambda: kant.phase(runs) == "running")
        assert eventually(lambda: scrape(kant)['kant_jobs_over_total{phase="failed"}'] == 1)
        found = scrape(kant)
        pool = next(name.partition("{")[2] for name in found if name.startswith("kant_gar{"))
        assert found["kant_gar{" + pool] == pytest.approx(4 / 8)
        assert found['kant_jobs{phase="running"}'] == 1 and found['kant_jobs{phase="waiting"}'] == 1
        assert sum(n for name, n in found.items() if name.startswith('kant_pending_jobs{queue="default"')) == 1
        waits_seen = sum(n for name, n in found.items() if name.startswith("kant_job_wait_seconds_count"))
        assert found["kant_runs_started_total"] == 2 == waits_seen
        assert found["kant_store_writable"] == 1 and found["kant_cycles_total"] >= 2
        assert 0 < found["kant_sor{" + pool] < 1
        pages = (DOCS / "up.md").read_text() + (DOCS / "kubernetes-metrics.md").read_text()
        named = set(re.findall(r"`(kant_\w+)`", pages))
        names = (name.partition("{")[0] for name in found)
        bare = {re.sub(r"_(bucket|count|sum)$", "", name) for name in names if not name.endswith("_created")}
        assert {name for name in bare if name.startswith("kant_")} <= named
        for job in (runs, waits):
            kant.client.post(kant.client.job(job, "cancel"))
        kant.over(runs)
