"""The interface of an elastic training job to Kant: a few lines in its loop, with or without PyTorch.

elastic = Elastic()
tokens, devices = elastic.tokens, elastic.now.devices
while not elastic.is_over(tokens):
    if elastic.changed(tokens) and devices != elastic.now.devices:
        devices = elastic.now.devices
        regroup(devices)  # create a new process group
    for group in optimizer.param_groups:
        group["lr"] = elastic.rate(tokens)
    for _ in range(elastic.now.rounds):
        (loss(next_samples(elastic.now.each)) / elastic.now.rounds).backward()
    optimizer.step()
    optimizer.zero_grad()
    tokens += elastic.now.batch * LENGTH
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from kant.model.elastic import Contract, Resize, RunReport, report_path
from kant.model.errors import InputError

SAID_EVERY = 0.2  # seconds between two reports of tokens


class Elastic:
    """The events that Kant sends to the elastic run of this process. `now` is the latest one.

    Raises InputError if Kant did not start this process with a contract.
    """

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        env = os.environ if environment is None else environment
        if "KANT_ELASTIC" not in env:
            raise InputError("KANT_ELASTIC", "to be set, as in a job of `kant submit --contract FILE`")
        self._file = Path(env["KANT_ELASTIC"])
        self._report = Path(report_path(env["KANT_ELASTIC"]))
        self.contract = msgspec.json.decode(env["KANT_CONTRACT"], type=Contract)
        self._at = 0
        self._said = -SAID_EVERY
        self.now: Resize = self._read()[-1]
        self.tokens = self.now.tokens
        """The tokens that the previous run had reached, if this is a retry."""

    def _read(self) -> list[Resize]:
        """Return the events since the last call. An incomplete line is left for the next call."""
        with self._file.open("rb") as file:
            file.seek(self._at)
            whole = file.read().rpartition(b"\n")[0]
        self._at += len(whole) + 1 if whole else 0
        return [msgspec.json.decode(line, type=Resize) for line in whole.splitlines()]

    def changed(self, tokens: float) -> bool:
        """Whether there is a new event, then in `now`. The next call tells Kant that the job has followed it."""
        moment = time.monotonic()
        events = self._read() if self._file.stat().st_size > self._at else []
        if events or self._behind or moment - self._said >= SAID_EVERY:
            self._say(RunReport(self.now.number, tokens))
            self._said, self._behind = moment, bool(events)
        if events:
            self.now = events[-1]
        return bool(events)

    _behind = False  # an event was returned and not confirmed yet

    def _say(self, report: RunReport) -> None:
        own = self._report.with_suffix(".new")
        own.write_bytes(msgspec.json.encode(report))
        own.replace(self._report)

    def rate(self, tokens: float) -> float:
        """Return the learning rate of the next step, after `tokens` trained tokens."""
        return self.contract.learning_rate(self.now.batch, tokens, self.now.tail)

    def is_over(self, tokens: float) -> bool:
        """Whether the final decay of the learning rate has ended: then the job may save its weights and exit."""
        return self.now.tail is not None and tokens >= self.now.tail[1]
