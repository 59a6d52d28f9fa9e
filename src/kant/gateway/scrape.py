"""What engines say of themselves: the Prometheus metrics of vLLM and SGLang, and the models that they serve."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import msgspec

_LINE = re.compile(r"^((?:vllm|sglang):\w+)(?:\{(.*)\})? (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
"""The share of the KV in use, 0 to 1; vLLM has renamed it."""
PREEMPTED = ("vllm:num_preemptions_total", "sglang:num_retracted_reqs")
CACHE = ("vllm:cache_config_info", "sglang:cache_config_info")
TOKENS = "sglang:max_total_num_tokens"


@dataclass(frozen=True, slots=True)
class Scraped:
    """One look at an engine: its requests, the share of its KV in use, and where it says so its blocks."""

    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    preemptions: int = 0
    blocks: int = 0
    block_size: int = 0

    @property
    def requests(self) -> int:
        return self.running + self.waiting


def read_metrics(text: str) -> Scraped | None:
    """What the text of `/metrics` says; several engines behind one address are counted as one. None: of neither."""
    values: dict[str, list[float]] = {}
    labels: dict[str, str] = {}
    for name, label, value in _LINE.findall(text):
        if name in CACHE:
            labels |= dict(_LABEL.findall(label))
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number) and 0 <= number < 1e15:
            values.setdefault(name, []).append(number)
    if not any(name in values for name in (*RUNNING, *WAITING)):
        return None

    def total(names: tuple[str, ...]) -> int:
        return int(sum(sum(values.get(name, ())) for name in names))

    usages = next((values[name] for name in USAGE if name in values), [0.0])
    size = _whole(labels.get("block_size") or labels.get("page_size"))
    blocks = _whole(labels.get("num_gpu_blocks") or labels.get("num_pages"))
    if not blocks and size and TOKENS in values:
        blocks = int(sum(values[TOKENS])) // size
    return Scraped(
        total(RUNNING), total(WAITING), min(sum(usages) / len(usages), 1.0), total(PREEMPTED), blocks, size
    )  # fmt: skip


def _whole(text: str | None) -> int:
    return int(text) if text is not None and re.fullmatch("[0-9]{1,9}", text) else 0


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def read_models(body: bytes) -> frozenset[str] | None:
    """The ids of `/v1/models`; None where it is not such an answer."""
    try:
        return frozenset(model.id for model in msgspec.json.decode(body, type=_Models).data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
