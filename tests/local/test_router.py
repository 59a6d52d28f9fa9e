"""A router of policies under `kant up`: a look-ahead confirms its switch or does not, and it is pinned by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.command import kant as verb
from tests.core.test_router import SHORT
from tests.local.test_reload import prepare
from tests.local.up import Up, eventually

from kant.scheduler.profile import parse_profile
from kant.service.reload import Files


def journals(kant: Up) -> list[list[dict[str, Any]]]:
    """The lines of the journals, the oldest first."""
    found = sorted((kant.home / "journal").glob("*.jsonl"))
    return [[json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")] for path in found]


def routed(kant: Up, policy: str) -> list[str]:
    """The sentences of the events about a policy."""
    lines = [line for journal in journals(kant) for line in journal if line.get("event") == "routed"]
    return [line["why"] for line in lines if line["policy"] == policy]


def test_a_live_router_switches_where_a_look_ahead_confirms_it_and_is_pinned_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "weather.toml"
    file.write_text(SHORT.replace("hold_s = 60", "hold_s = 1"))
    profile = parse_profile(file.read_text(), str(file))
    with Up(tmp_path / "home", "1x2", prepare, profile=profile, files=Files(file, None, None)) as kant:
        block = kant.submit("sleep 600", gpus=2, time_s=3600, grace_s=0.1)
        long = kant.submit("sleep 600", gpus=2, time_s=36_000)
        assert eventually(lambda: routed(kant, "fifo") != [])
        assert routed(kant, "fifo")[0].startswith("short is not confirmed, though somebody waits: 1 jobs wait: ")
        short = kant.submit("true", gpus=2, time_s=60)
        assert eventually(lambda: routed(kant, "short") != [])
        assert routed(kant, "short")[0].startswith("somebody waits: 2 jobs wait; simulated from now, ")
        assert verb("profiles", "pin", file, "short").code == 0
        assert eventually(lambda: any('pin = "short"' in each[0]["profile"] for each in journals(kant) if each))
        kant.client.post(kant.client.job(block, "cancel"))
        assert kant.over(short) == ["finished"] and kant.phase(long) in ("queued", "waiting", "running", "starting")
        kant.client.post(kant.client.job(long, "cancel"))
    first = min((tmp_path / "home" / "journal").glob("*.jsonl"))
    assert verb("replay", first).out.startswith("equal")
