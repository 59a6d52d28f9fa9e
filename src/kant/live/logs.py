"""Logs with the standard `logging`: one line per event, as JSON or as logfmt.

    log = logging.getLogger("kant")
    log_event(log, "bound", job="ml/train", nodes=["gpu-1"], seconds=0.004)

Potential secrets are never logged: no requests, headers or configurations.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from kant.model.decision import Expire, Grow, Hold, Plan, Preempt, Reject, Reserve, Route, Shrink, Start, sentence
from kant.model.errors import InputError
from kant.model.placement import NODE

FORMATS = ("json", "logfmt")
LEVELS = ("debug", "info", "warning", "error")
MOST_NODES = 16
"""Maximum number of nodes that a line names; further nodes are only counted."""

logging.getLogger("kant").addHandler(logging.NullHandler())
"""Nothing is logged before `set_up`: users of commands should not see the cluster's faults after each answer."""

_PLAIN = re.compile(r"[^\s\"=\x00-\x1f\x7f]+")


class _Lines(logging.Formatter):
    def __init__(self, logfmt: bool) -> None:
        super().__init__()
        self._logfmt = logfmt

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        if self._logfmt:
            return " ".join(f"{key}={_word(value)}" for key, value in line.items())
        return json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str)


def _word(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def set_up(format: str = "json", level: str = "info", stream: TextIO | None = None) -> logging.Logger:
    """Send the lines of the logger `kant` to `stream`, by default standard error. Raises InputError."""
    if format not in FORMATS:
        raise InputError("--log-format", f"one of {', '.join(FORMATS)}", format)
    if level not in LEVELS:
        raise InputError("--log-level", f"one of {', '.join(LEVELS)}", level)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Lines(format == "logfmt"))
    logger = logging.getLogger("kant")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    return logger


def log_event(logger: logging.Logger, message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log one line with its fields, without those that are None or empty."""
    if logger.isEnabledFor(level):
        kept = {key: value for key, value in fields.items() if value is not None and value != "" and value != []}
        logger.log(level, message, extra={"fields": kept})


def log_decisions(logger: logging.Logger, plan: Plan, names: Sequence[str]) -> None:
    """Log a line for each decision of a plan that concerns a job; `names` are the nodes' names by index."""
    if not logger.isEnabledFor(logging.INFO):
        return
    for each in plan.decisions:
        match each:
            case (
                Start(job=job, allocation=pieces)
                | Grow(job=job, allocation=pieces)
                | Shrink(job=job, allocation=pieces)
            ):
                nodes = list(dict.fromkeys(pieces[:, NODE].tolist()))
                more = len(nodes) - MOST_NODES
                shown = [names[node] for node in nodes[:MOST_NODES]]
                verb = _verb(each)
                log_event(logger, verb, job=job, decision=verb, nodes=shown, more_nodes=more if more > 0 else None)
            case Preempt(job=job, by=by, why=why):
                log_event(logger, "preempt", job=job, decision="preempt", by=by, reason=why)
            case Hold(job=job, reason=reason) | Reject(job=job, reason=reason):
                why = str(reason.__struct_config__.tag)
                log_event(logger, sentence(reason), job=job, decision=_verb(each), reason=why)
            case Reserve(job=job, start=start):
                log_event(logger, "reserve", job=job, decision="reserve", start_s=start / 1e6)
            case Expire(job=job):
                log_event(logger, "expire", job=job, decision="expire")
            case Route(policy=policy, why=why):
                log_event(logger, f"{policy} acts from now on: {why}", decision="route")


def _verb(decision: Any) -> str:
    return str(decision.__struct_config__.tag)
