"""A file of tenants is read exactly, and whatever is wrong with it is said in one sentence that names the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from kant.model.errors import InputError
from kant.model.tenant import Budget, Queue, QueueConfig, Quota
from kant.model.units import MINUTE
from kant.workload.tenants_file import parse_tenants, read_tenants

GOOD = """
[[queue]]
name = "research"
gpus = 64

[[queue]]
name = "vision"
parent = "research"
weight = 2
isolated = true
state = "drain"
min_run = "10m"
node_wait = "5m"
user_queues = true
max_time = "2h"
fallback = "cheapest"

[queue.budget]
hard = 2000
soft = 1600.5
user_hard = 400

[[queue.quota]]
model = "H100"
nominal = 16.5
borrowing_limit = 8
lending_limit = 0
user_limit = 0.25

[[queue.quota]]
resource = "cpu"
nominal = 96.125

[[queue.quota]]
resource = "memory"
nominal = "1.5TiB"
borrowing_limit = 512

[prices]
H100 = 4.2
"T4 16GB" = 1
"""

A = "[[queue]]\nname = 'a'\n"
Q = A + "[[queue.quota]]\n"
FIRST = "t.toml, [[queue]] 1"

CASES = {
    "not TOML": ("queue", "t.toml: expected TOML ("),
    "too deep": ("a = " + "[" * 100_000, "t.toml: expected TOML ("),
    "unknown table": ("[fabric]", "t.toml: expected only the keys queue, prices, got 'fabric'"),
    "unknown key": (A + "gpu = 8", FIRST + ": expected only the keys name, parent,"),
    "unknown quota key": (Q + "gpus = 8", FIRST + ", [[queue.quota]] 1: expected only the keys model, resource,"),
    "no tables": ("queue = 3", "t.toml, queue: expected [[queue]] tables, got 3"),
    "no table": ("queue = [3]", FIRST + ": expected a table, got 3"),
    "no quota table": (A + "quota = [3]", FIRST + ", [[queue.quota]] 1: expected a table, got 3"),
    "no name": ("[[queue]]", FIRST + ": expected the key name, a name of 1 to 253 printable characters"),
    "spaced name": ("[[queue]]\nname = 'a b'", FIRST + ", name: expected a name of 1 to 253 printable characters"),
    "number as name": ("[[queue]]\nname = 3", FIRST + ", name: expected a name"),
    "text as weight": (A + "weight = 'x'", FIRST + ", weight: expected a whole number from 1, got 'x'"),
    "no weight": (
        A + "weight = 0",
        "t.toml, queue 'a', weight: expected a whole number from 1 to less than 2^53, got 0",
    ),
    "isolated": (A + "isolated = 1", FIRST + ", isolated: expected true or false, got 1"),
    "state": (A + "state = 'shut'", FIRST + ", state: expected one of open, hold, stop, drain, got 'shut'"),
    "fallback": (A + "fallback = ''", FIRST + ", fallback: expected one of listed, cheapest, got ''"),
    "min_run as number": (A + "min_run = 3", FIRST + ", min_run: expected a duration such as 90s"),
    "user_queues as word": (A + "user_queues = 'yes'", FIRST + ", user_queues: expected true or false, got 'yes'"),
    "node_wait as word": (A + "node_wait = 'soon'", FIRST + ", node_wait: expected a duration such as 90s"),
    "min_run as word": (A + "min_run = 'soon'", FIRST + ", min_run: expected a duration such as 90s"),
    "fine gpus": (A + "gpus = 0.0001", FIRST + ", gpus: expected GPUs as a number from 0 with at most three decimals"),
    "true gpus": (A + "gpus = true", FIRST + ", gpus: expected GPUs as a number"),
    "both": (Q.replace("'a'\n", "'a'\ngpus = 1\n"), FIRST + ", gpus: expected either this or a quota of the GPUs"),
    "resource": (Q + "resource = 'disk'", FIRST + ", [[queue.quota]] 1, resource: expected one of gpu, cpu, memory"),
    "model": (Q + "model = 100", FIRST + ", [[queue.quota]] 1, model: expected text"),
    "lines in a model": (Q + 'model = "a\\nb"', FIRST + ", [[queue.quota]] 1, model: expected text"),
    "negative": (Q + "nominal = -1", FIRST + ", [[queue.quota]] 1, nominal: expected GPUs as a number from 0"),
    "no limit is no number": (Q + "user_limit = -1", FIRST + ", [[queue.quota]] 1, user_limit: expected GPUs"),
    "endless": (Q + "lending_limit = inf", FIRST + ", [[queue.quota]] 1, lending_limit: expected GPUs"),
    "no number": (Q + "nominal = nan", FIRST + ", [[queue.quota]] 1, nominal: expected GPUs"),
    "huge": (Q + f"nominal = {10**30}", FIRST + ", [[queue.quota]] 1, nominal: expected"),
    "text as GPUs": (Q + "nominal = '8'", FIRST + ", [[queue.quota]] 1, nominal: expected GPUs"),
    "cores": (Q + "resource = 'cpu'\nnominal = 0.0001", FIRST + ", [[queue.quota]] 1, nominal: expected cores"),
    "memory": (Q + "resource = 'memory'\nnominal = '2TB'", FIRST + ", [[queue.quota]] 1, nominal: expected memory"),
    "part of a MiB": (
        Q + "resource = 'memory'\nnominal = 0.5",
        FIRST + ", [[queue.quota]] 1, nominal: expected memory",
    ),
    "part of a MiB in text": (
        Q + "resource = 'memory'\nnominal = '0.3MiB'",
        FIRST + ", [[queue.quota]] 1, nominal: expected memory",
    ),
    "list": (Q + "borrowing_limit = []", FIRST + ", [[queue.quota]] 1, borrowing_limit: expected a number"),
    "quota twice": (Q + "[[queue.quota]]\n", "t.toml, queue 'a', quota 2: expected one quota for gpu in each queue"),
    "name twice": (A + A, "t.toml, queue 'a', name: expected a name that no other queue has, got 'a'"),
    "no parent": (A + "parent = 'b'", "t.toml, queue 'a', parent: expected the name of another queue, got 'b'"),
    "cycle": (A + "parent = 'a'", "t.toml, queue 'a', parent: expected a queue that is not below this one, got 'a'"),
    "budget of nothing": (A + "budget = {}", FIRST + ", [queue.budget], hard: expected GPU-hours as a number above 0"),
    "no budget": (
        A + "budget = {user_soft = 0}",
        FIRST + ", [queue.budget], user_soft: expected GPU-hours as a number",
    ),
    "budget below": (
        A + "budget = {soft = -1}",
        FIRST + ", [queue.budget], soft: expected GPU-hours as a number above",
    ),
    "budget that warns too late": (
        A + "budget = {user_hard = 3, user_soft = 5}",
        "t.toml, queue 'a', budget, user_soft: expected at most user_hard (3 GPU-hours), got 5",
    ),
    "prices": ("prices = 3", "t.toml, prices: expected a table of a price for each GPU model, got 3"),
    "true price": (
        "[prices]\nA = 1\nT4 = true",
        "t.toml, prices, T4: expected a price from 0 with at most three decimals",
    ),
    "negative price": ("[prices]\nT4 = -1", "t.toml, prices, T4: expected a price from 0"),
    "price of lines": ('[prices]\n"a\\nb" = true', "t.toml, prices: expected text of 1 to 253"),
    "price of nothing": ('[prices]\n"" = 1', "t.toml, prices: expected text of 1 to 253"),
}


def test_a_file_is_read_exactly(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(GOOD)
    quotas = (
        Quota("gpu", "H100", 16_500, 8_000, 0, 250),
        Quota("cpu", nominal=96_125),
        Quota("memory", nominal=3 << 19, borrowing_limit=512),
    )
    vision = Queue(
        "vision", "research", 2, True, "drain", 10 * MINUTE, quotas, "cheapest", 5 * MINUTE, True, 120 * MINUTE,
        Budget(2_000_000, 1_600_500, 400_000),
    )  # fmt: skip
    research = Queue("research", quotas=(Quota(nominal=64_000),))
    assert read_tenants(path) == QueueConfig((research, vision), (("H100", 4_200), ("T4 16GB", 1_000)))


def test_an_empty_file_has_no_tenants() -> None:
    assert parse_tenants("t.toml", "") == QueueConfig()


@pytest.mark.parametrize(("text", "begins"), CASES.values(), ids=CASES)
def test_a_file_is_refused(text: str, begins: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_tenants("t.toml", text)
    assert str(refusal.value).startswith(begins)
    assert "\n" not in str(refusal.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a file that exists"):
        read_tenants(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="expected text in UTF-8"):
        read_tenants(tmp_path / "bytes.toml")
