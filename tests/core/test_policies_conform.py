"""Every built-in policy passes the suite that is published for people's own."""

from __future__ import annotations

from typing import Any

import pytest
from tests.examples import examples

from kant.scheduler.registry import KINDS, policies
from kant.testing import check_policy, make_named_policy

OTHERS = (
    ("placement", {"policy": "best-fit", "ties": "random"}),
    ("placement", {"policy": "fgd", "ties": "random"}),
    ("placement", {"policy": "kant", "ties": "random", "fragmentation": 50}),
    ("placement", {"policy": "consolidated", "ties": "random", "remainder": {"policy": "worst-fit"}}),
    ("order", {"policy": "las", "thresholds_gpu_s": (60, 600, 6000)}),
    ("discipline", {"policy": "preemptive", "min_run_s": 0}),
    ("discipline", {"policy": "repack", "keep": True}),
    ("discipline", {"policy": "easy", "heads": 2, "sticky": True, "backfill_order": {"policy": "sjf"}}),
    ("discipline", {"policy": "conservative", "sticky": False}),
)
CASES = [(kind, {"policy": name}) for kind in KINDS for name in policies(kind)] + list(OTHERS)


@pytest.mark.parametrize(("kind", "settings"), CASES, ids=lambda part: str(part))
def test_a_policy_keeps_the_rules_of_its_kind(kind: str, settings: dict[str, Any]) -> None:
    check_policy(make_named_policy(kind, settings), rounds=examples(2))
