"""A solver beside this machine's Kant: jobs move as it proposes, and what it sees can be asked."""

from __future__ import annotations

from pathlib import Path

from tests.local.up import Up, eventually

from kant.scheduler.profile import parse_profile

PROFILE = parse_profile(
    """
[order]
policy = "fifo"

[discipline]
policy = "strict"

[placement]
policy = "e-binpack"

[fallback]
wait_s = 1
every_s = 1
limit_s = 0.1
""",
    "fallback",
)


def test_a_job_moves_so_that_one_that_waits_starts(tmp_path: Path) -> None:
    with Up(tmp_path / "home", cluster="2x8", profile=PROFILE) as kant:
        jobs = []
        for _ in range(4):
            jobs.append(kant.submit("sleep 600", gpus=4, time_s=7200))
            assert eventually(lambda: kant.phase(jobs[-1]) == "running")
        for job in (jobs[1], jobs[3]):
            kant.client.post(kant.client.job(job, "cancel"))
        assert eventually(lambda: kant.client.get("/v1/status")["pools"][0]["allocated"] == 8)
        wide = kant.submit("sleep 600", gpus=8, time_s=7200)
        assert eventually(lambda: kant.phase(wide) == "running")
        found = kant.client.get("/v1/status", optimality="true")
        assert found["waiting"] == 0 and found["optimality"]["stranded_gpus"] == 0
        journal = next((tmp_path / "home" / "journal").glob("*.jsonl")).read_text()
        assert '"event":"proposed"' in journal and '"why":"fallback"' in journal
        for job in (jobs[0], jobs[2], wide):
            kant.client.post(kant.client.job(job, "cancel"))
