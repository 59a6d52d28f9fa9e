"""`kant check policy`: policies by name, and those of other packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import kant

from kant.scheduler import registry

MODULE = '''
from typing import ClassVar
from kant.cluster.columns import J_MILLI
from kant.model.taxonomy import tagged
from kant.queueing.order import Order

class Good(Order, frozen=True, tag="good"):
    """The largest job goes first."""
    source: ClassVar[str] = "a test"
    tags = tagged(Order.tags, objective="none", knowledge="none")
    def keys(self, jobs, rows, now):
        return -jobs[rows, J_MILLI]

class Untagged(Good, frozen=True, tag="untagged"):
    """An order that does not say where it sits."""
    tags = Order.tags

class Raises(Good, frozen=True, tag="raises"):
    """An order with a fault."""
    def keys(self, jobs, rows, now):
        return {}["no such key"]
'''


def forget() -> None:
    for cached in (registry.policies, registry._policy, registry._offers):
        cached.cache_clear()


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another package with three orders, as an installer leaves it."""
    (tmp_path / "their_orders.py").write_text(MODULE)
    about = tmp_path / "their_orders-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-orders\nVersion: 1.0\n")
    points = "".join(f"order.{name.lower()} = their_orders:{name}\n" for name in ("Good", "Untagged", "Raises"))
    (about / "entry_points.txt").write_text(f"[kant.policies]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield
    sys.modules.pop("their_orders", None)
    monkeypatch.undo()
    forget()


@pytest.mark.usefixtures("theirs")
def test_policies_of_other_packages_are_listed_and_checked() -> None:
    listed = {policy["policy"]: policy["package"] for policy in kant("policies", "--json").json()["order"]}
    assert listed["good"] == "their-orders" and listed["fifo"] == "kant"
    found = kant("check", "policy", "--rounds", 1)
    assert found.code == 1 and found.out.splitlines() == [
        "order.good of package their-orders: follows the rules of its kind",
        "order.raises of package their-orders: expected no exception, got KeyError: 'no such key'",
        "order.untagged of package their-orders: Untagged: a policy must state its place in the taxonomy (`tags`): "
        "knowledge has no value of none, estimated, learned, clairvoyant",
    ]
    good = kant("check", "policy", "order.good", "--rounds", 1)
    assert good.code == 0 and good.out == "order.good of package their-orders: follows the rules of its kind\n"


def test_without_other_packages_nothing_is_checked_unless_it_is_named() -> None:
    assert kant("check", "policy").out == "no package offers a policy (docs/policies.md)\n"
    assert kant("check", "policy", "strict", "--rounds", 1).out.startswith("discipline.strict of package kant: follows")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nonsense"], "expected KIND.NAME of a policy"),
        (["placement.fifo"], "expected KIND.NAME of a policy"),
        (["fifo", "--rounds", "0"], "expected at least 1"),
    ],
)
def test_what_cannot_be_checked_is_refused(arguments: list[str], sentence: str) -> None:
    assert sentence in kant("check", "policy", *arguments).refusal()
