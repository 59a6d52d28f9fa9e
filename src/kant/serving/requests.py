"""Requests to a service, as columns: arrivals, lengths, and shared prefixes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kant.model.errors import InputError
from kant.serving.columns import Table, Times
from kant.serving.engine import NO_LIMIT, SPAN

NO_PROGRAM = -1


def _none() -> Table:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in order of arrival; every column has one entry for each.

    `arrival` is in seconds; `prompt` and `output` are in tokens. Of `priority` the lower goes first. `predicted` is the
    predicted output. `program` is the calling program (-1: none). Shared prefixes are given in one of two ways:
    requests of a `group` (-1: none) share their first `prefix` tokens; or `hashes` has a number for the contents of
    each `grain` tokens of a prompt. `remote_s` is how many seconds the KV of a prompt takes to come from another engine
    (NaN: it does not come). `most` is `max_tokens`, more than the output if that ends at a stop token. `where` is each
    request's position in its file.
    """

    name: str
    arrival: Times
    prompt: Table
    output: Table
    priority: Times = field(default_factory=lambda: np.zeros(0))
    predicted: Times = field(default_factory=lambda: np.zeros(0))
    program: Table = field(default_factory=_none)
    group: Table = field(default_factory=_none)
    prefix: Table = field(default_factory=_none)
    remote_s: Times = field(default_factory=lambda: np.zeros(0))
    most: Table = field(default_factory=_none)
    hashes: tuple[Table, ...] = ()
    grain: int = 0
    where: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.arrival)
        for name, default in (
            ("priority", np.zeros(count)),
            ("predicted", self.output.astype(np.float64)),
            ("program", np.full(count, NO_PROGRAM)),
            ("group", np.full(count, NO_PROGRAM)),
            ("prefix", np.zeros(count, dtype=np.int64)),
            ("remote_s", np.full(count, np.nan)),
            ("most", np.full(count, NO_LIMIT)),
        ):
            if len(getattr(self, name)) != count:
                object.__setattr__(self, name, default)

    def __len__(self) -> int:
        return len(self.arrival)

    def place(self, i: int) -> str:
        """Return the place of request `i`, for an error message."""
        return self.where[i] if self.where else f"{self.name}: request {i}"

    def contents(self, i: int, block_size: int) -> Table:
        """Return a number for each leading full block of request `i` that other requests may share."""
        if self.grain:
            blocks = np.arange(self.prompt[i] // block_size)
            per = self.grain // block_size
            found: Table = self.hashes[i][blocks // per] * per + blocks % per
            return found
        if self.group[i] >= 0:
            return int(self.group[i]) * SPAN + np.arange(self.prefix[i] // block_size)
        return _none()

    def check(self, block_size: int, tokens: int, prefix_cache: bool) -> None:
        """Raise InputError if an engine whose KV holds `tokens` tokens cannot serve every request."""
        if len(self) == 0:
            raise InputError(self.name, "at least one request")
        if prefix_cache and self.grain and self.grain % block_size:
            raise InputError("--block-size", f"a divisor of {self.grain}, the tokens of a hash of the file", block_size)
        need = self.prompt + self.output - 1
        if need.max() > tokens:
            i = int(np.argmax(need > tokens))
            raise InputError(
                self.place(i), f"a request of at most {tokens} tokens, as many as the KV holds", int(need[i])
            )

    def at_rate(self, rate: float) -> Requests:
        """Return the same requests with arrivals scaled to a mean of `rate` a second."""
        if not rate > 0:
            raise InputError("--rate", "a number of requests a second above 0", rate)
        span = float(self.arrival[-1] - self.arrival[0])
        if span == 0:
            raise InputError("--rate", "requests that do not all arrive at once", self.name)
        factor = (len(self) - 1) / span / rate
        return replace(self, arrival=(self.arrival - self.arrival[0]) * factor)

    def first(self, count: int) -> Requests:
        """Return the first `count` requests."""
        return self.chosen(np.arange(min(count, len(self))))

    def chosen(self, which: Table) -> Requests:
        """Return the requests with these numbers, in that order."""
        found: dict[str, Any] = {}
        for name in (
            "arrival", "prompt", "output", "priority", "predicted", "program", "group", "prefix", "remote_s", "most",
            "hashes", "where",
        ):  # fmt: skip
            column = getattr(self, name)
            if len(column):
                found[name] = column[which] if isinstance(column, np.ndarray) else tuple(column[i] for i in which)
        return replace(self, **found)
