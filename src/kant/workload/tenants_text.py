"""Writes the TOML file of tenants that `tenants_file` reads."""

from __future__ import annotations

import json
from typing import Any

from msgspec import structs

from kant.model.tenant import Queue, QueueConfig, Quota


def text_of(queue_config: QueueConfig) -> str:
    """Return the file of these queues and prices. `tenants_file` reads the same queues and prices from it."""
    lines = [line for queue in queue_config.queues for line in (*_queue(queue), "")]
    if queue_config.prices:
        lines += ["[prices]", *(f"{_said(model)} = {_amount(price)}" for model, price in queue_config.prices), ""]
    return "\n".join(lines)


def _queue(queue: Queue) -> list[str]:
    plain = Queue(queue.name)
    said: dict[str, Any] = {"name": queue.name}
    for field in ("parent", "weight", "isolated", "state", "fallback", "user_queues"):
        if getattr(queue, field) != getattr(plain, field):
            said[field] = getattr(queue, field)
    for field in ("min_run", "node_wait", "max_time"):
        if getattr(queue, field):
            said[field] = duration(getattr(queue, field))
    lines = ["[[queue]]", *(f"{field} = {_said(value)}" for field, value in said.items())]
    quotas = queue.quotas
    if quotas and quotas[0] == Quota(nominal=quotas[0].nominal):
        lines.append(f"gpus = {_amount(quotas[0].nominal)}")
        quotas = quotas[1:]
    if queue.budget is not None:
        amounts = {field: value for field, value in structs.asdict(queue.budget).items() if value >= 0}
        lines += ["", "[queue.budget]", *(f"{field} = {_amount(value)}" for field, value in amounts.items())]
    for quota in quotas:
        lines += ["", "[[queue.quota]]", *_quota(quota)]
    return lines


def _quota(quota: Quota) -> list[str]:
    lines = [f"resource = {_said(quota.resource)}"] if quota.resource != "gpu" else []
    lines += [f"model = {_said(quota.model)}"] if quota.model else []
    for field in ("nominal", "borrowing_limit", "lending_limit", "user_limit"):
        value: int = getattr(quota, field)
        if value >= 0:
            lines.append(f"{field} = {value if quota.resource == 'memory' else _amount(value)}")
    return lines


def duration(micros: int) -> str:
    """Return a duration in the form used in files and objects, rounded up to the millisecond."""
    milli = -(-micros // 1000)
    return f"{milli // 1000}s" if milli % 1000 == 0 else f"{milli}ms"


def _amount(milli: int) -> str:
    """Return thousandths as a number with at most three decimals."""
    whole, rest = divmod(milli, 1000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else f"{whole}"


def _said(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
