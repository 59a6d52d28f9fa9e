"""A router of policies under `kant up`: it switches, its journal says so, and it is pinned by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.command import kant as verb
from tests.local.test_reload import prepare
from tests.local.up import Up, eventually

from kant.scheduler.profile import builtin_texts, parse_profile
from kant.service.reload import Files


def journals(kant: Up) -> list[list[dict[str, Any]]]:
    """The lines of the journals, the oldest first."""
    found = sorted((kant.home / "journal").glob("*.jsonl"))
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in found]


def routed(kant: Up) -> list[str]:
    return [line["policy"] for journal in journals(kant) for line in journal if line.get("event") == "routed"]


def test_a_live_router_switches_and_is_pinned_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "weather.toml"
    file.write_text(builtin_texts()["kant-weather"].partition("[[router.rules]]")[0] + RULE)
    profile = parse_profile(file.read_text(), str(file))
    with Up(tmp_path / "home", "1x2", prepare, profile=profile, files=Files(file, None, None)) as kant:
        block = kant.submit("sleep 600", gpus=2, priority=9, grace_s=0.1)
        kant.submit("true", gpus=1)
        assert eventually(lambda: routed(kant) == ["predicted"])
        (switch,) = (line for line in journals(kant)[0] if line.get("event") == "routed")
        assert switch["why"] == "somebody waits: 1 jobs wait"
        assert verb("profiles", "pin", file, "attained").code == 0
        assert eventually(lambda: len(journals(kant)) == 2)
        assert kant.over(kant.submit("true")) == ["finished"] and routed(kant) == ["predicted"]
        assert 'pin = "attained"' in journals(kant)[1][0]["profile"]
        kant.client.post(kant.client.job(block, "cancel"))
    first = min((tmp_path / "home" / "journal").glob("*.jsonl"))
    assert verb("replay", first).out.startswith("equal")


RULE = '[[router.rules]]\npolicy = "predicted"\nsays = "somebody waits"\nwhere = { waiting = [1, 100] }\n'
