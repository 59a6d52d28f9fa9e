"""Reads engines' own reports: the Prometheus metrics of vLLM and SGLang, and the models that they serve."""

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
"""The fraction of the KV cache in use, from 0 to 1. vLLM has renamed the metric."""
GENERATED = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")
ENDED = ("vllm:request_success_total", "sglang:num_requests_total")
"""Requests that have ended for any reason."""
PREEMPTED = ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total")
CACHE = ("vllm:cache_config_info", "sglang:cache_config_info")
"""Metrics whose labels report the KV cache. SGLang's is as the Gateway API Inference Extension documents it."""
PAGES, PAGE, TOKENS = "sglang:num_pages", "sglang:page_size", "sglang:max_total_num_tokens"
"""SGLang 0.5 reports its KV cache in these separate gauges. Older versions report only the number of tokens."""

RANKS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})
"""Labels of processes of the same engine; with `--enable-metrics-for-all-schedulers` each reports the same values."""


@dataclass(frozen=True, slots=True)
class Scraped:
    """One scrape of an engine: its requests, the fraction of its KV cache in use, and its blocks if it reports them."""

    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    preemptions: int = 0
    blocks: int = 0
    block_size: int = 0
    generated: int = 0
    """`generated` counts output tokens, and `ended` requests that have ended, since the engine started."""
    ended: int = 0

    @property
    def requests(self) -> int:
        return self.running + self.waiting


def read_metrics(text: str) -> Scraped | None:
    """Parse the text of `/metrics`. Several engines at one address are added up. Returns None if no metric is from vLLM
    or SGLang.

    With priorities, SGLang repeats its counts per priority. Only the total, whose priority is "", is read.
    """
    series: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    said: list[dict[str, str]] = []
    for name, label, value in _LINE.findall(text):
        labels = dict(_LABEL.findall(label))
        if name in CACHE:
            said.append(labels)
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number) and 0 <= number < 1e15 and not labels.get("priority"):
            engine = frozenset((key, what) for key, what in labels.items() if key not in RANKS)
            values = series.setdefault(name, {})
            values[engine] = max(number, values.get(engine, 0.0))
    if not any(name in series for name in (*RUNNING, *WAITING)):
        return None

    def total(*names: str) -> int:
        return int(sum(sum(series.get(name, {}).values()) for name in names))

    usages = next((list(series[name].values()) for name in USAGE if name in series), [0.0])
    blocks, size = _kv(said)
    if not blocks:
        size = size or int(max(series.get(PAGE, {}).values(), default=0))
        blocks = total(PAGES) or (total(TOKENS) // size if size else 0)
    return Scraped(
        total(*RUNNING), total(*WAITING), min(sum(usages) / len(usages), 1.0), total(*PREEMPTED), blocks, size,
        total(*GENERATED), total(*ENDED),
    )  # fmt: skip


def _kv(said: list[dict[str, str]]) -> tuple[int, int]:
    """Return the blocks of all engines together, and the tokens of a block, from the labels; 0 if not reported."""
    size = blocks = 0
    for labels in said:
        size = _whole(labels.get("block_size") or labels.get("page_size")) or size
        blocks += _whole(labels.get("num_gpu_blocks") or labels.get("num_pages"))
    return blocks, size


def _whole(text: str | None) -> int:
    return int(text) if text is not None and re.fullmatch("[0-9]{1,9}", text) else 0


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


def read_models(body: bytes) -> tuple[frozenset[str], frozenset[str]] | None:
    """Return the ids of `/v1/models`, and those with a `parent`: adapters. None if the response is invalid."""
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return frozenset(model.id for model in models), frozenset(model.id for model in models if model.parent)
