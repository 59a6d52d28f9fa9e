"""An engine that batches as SGLang does: its scheduler, version 0.5.23 (srt/managers/scheduler.py, Apache-2.0).

In short: a step computes either prompts or one token of each running request, and prompts go first. Waiting requests
are taken in order of arrival (`fcfs`), by the longest possible output (`lof`), by the longest cached prefix (`lpm`; of
several with the same uncached beginning, only one), or prefix by prefix, those with most requests first (`dfs-weight`).
A request is admitted if its prompt fits together with everything that it and all running ones may still output. Only a
share of these outputs counts: the new-token ratio, which falls at each step of decoding. Prompts are cut at the chunk.
If KV runs out, the requests with the shortest outputs are retracted: they lose their KV and queue again at the end.

SGLang's default is to overlap scheduling and computing: the setting `async_scheduling`. A step is then planned while
the previous step is computed. A request at its limit of tokens is left out. A request that ends at a stop token is
computed for one more step, whose token is discarded. A retracted request loses the token of the current step.

The class has those tables of `Engine` that others read, and runs as plain Python. `kant serve verify` checks it against
recorded runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kant.model.errors import InputError, StateError
from kant.serving import columns as c
from kant.serving.columns import FOREVER, Table, Times
from kant.serving.engine import NO_LIMIT, Engine, EngineSettings
from kant.serving.radix import Node, Radix

LONGEST_ESTIMATE = 4096
"""Of what a request may still output, SGLang counts at most this many tokens."""

MOST_PREFILL = 16384
"""SGLang's default of `max_prefill_tokens`: the most tokens of prompts in a step."""

FIRST_RATIO, LEAST_RATIO, DECAY_STEPS, RETRACT_STEPS = 0.7, 0.7 * 0.14, 600, 20
SORTED_AT_MOST, SHORT_PREFIX, REFRESH_EVERY = 128, 32, 32


class ForwardBatch(NamedTuple):
    """The work of a step: its requests, and up to which of its tokens each has KV afterwards."""

    who: list[int]
    ends: list[int]
    prompts: bool
    middle: int  # the request whose prompt continues in a later step; -1: none
    ms: float


class SGLang(Engine):
    """A running engine of single-token blocks, whose prefix cache is a radix tree."""

    def __init__(self, settings: EngineSettings, expected: int = 64) -> None:
        super().__init__(settings, expected)
        self.tree, self.free = Radix(), settings.num_blocks - 1
        self.texts: list[list[int]] = []
        self.prefix: list[int] = []  # tokens of each request that have KV before the step
        self.end: list[int] = []  # tokens of each request that have KV after the step
        self.ours: list[int] = []  # tokens of each request whose KV belongs to the tree
        self.node: list[Node] = []  # the node of the tree that each request has locked
        self.line: list[int] = []
        self.runs: list[int] = []
        self.step: ForwardBatch | None = None  # under way
        self.next: ForwardBatch | None = None  # the step that follows it
        self.last: ForwardBatch | None = None  # the step that was planned last
        self.full = False
        self.chunked = -1  # the request whose prompt continues
        self.ratio, self.refreshes, self.done = FIRST_RATIO, 0, 0

    def add(self, arrival: float, prompt: int, output: int, *given: Any, **more: Any) -> int:
        """Add a waiting request, as `Engine.add` does; return its number."""
        if self.count == self.done and not self.step and arrival > self.clock[c.CLOCK]:  # it has been idle
            self.ratio, self.last, self.runs = FIRST_RATIO, None, []
        r = super().add(arrival, prompt, output, *given, **more)
        row = self.requests[r]
        row[c.MOST] = max(min(row[c.MOST], self.settings.num_blocks - 3 - prompt), output)
        first, own = row[c.SHARED_FROM], int(row[c.OWN])
        shared = self.shared[first : first + row[c.SHARED]].tolist()
        self.texts.append(shared + [own - k for k in range(len(shared), prompt + output)])
        for column in (self.prefix, self.end, self.ours):
            column.append(0)
        self.node.append(self.tree.root)
        self.line.append(r)
        self._tell()
        return r

    def run(self, until: float = FOREVER, steps: int = NO_LIMIT, stop_at_finish: bool = False) -> int:
        """Run until a time, a number of steps, or a finished request; return why it stopped, as `Engine.run` does."""
        begun = vain = 0
        while True:
            if self.step and (self.state[c.LOOKED] or not self.settings.async_scheduling):
                if self.clock[c.END] > until:
                    return c.REACHED
                had = self.done
                self._complete(self.step)
                self._follow(self.next)
                if stop_at_finish and self.done > had:
                    return c.STOPPED
            if self.count == self.done and not self.step:
                return c.IDLE
            if self.clock[c.CLOCK] >= until:
                return c.REACHED
            if begun == steps:
                return c.STOPPED
            self.last = self._plan()
            if self.last:
                begun, vain = begun + 1, 0
            if self.step:
                self.next, self.state[c.LOOKED] = self.last, 1
                self._tell()
                continue
            self._follow(self.last)
            if not self.last and (vain := vain + 1) > 3:
                raise StateError("requests wait for an engine that runs nothing")

    def fork(self, outputs: Times) -> tuple[Engine, Table]:
        """Raise InputError: routers that run a copy of an engine ahead do not support SGLang."""
        raise InputError("--router", "a router that runs no copy of an engine ahead, with SGLang", "one that does")

    def withdraw(self, r: int) -> bool:
        """Raise StateError: clients of this engine always wait for their answers."""
        raise StateError("requests of an engine of SGLang are not withdrawn")

    def _known(self, r: int) -> int:
        return int(self.requests[r, c.PROMPT] + self.requests[r, c.DONE])

    def _rest(self, r: int) -> int:
        return min(max(int(self.requests[r, c.MOST] - self.requests[r, c.DONE]), 0), LONGEST_ESTIMATE)

    def _tell(self) -> None:
        """Update the tables that others read."""
        steps = [step.who if step else [] for step in (self.step, self.next)]
        state, runs = self.state, dict.fromkeys([*self.runs, *steps[0], *steps[1]])
        live = [r for r in runs if self.requests[r, c.STATE] == c.RUNNING]
        state[c.RUNS], state[c.WAITS], state[c.PLANNED] = len(live), len(self.line), len(steps[0])
        self.running[: len(live)], self.waiting[: len(self.line)] = live, self.line
        state[c.FREE] = self.free + self.tree.evictable

    # --- planning a step ------------------------------------------------------------------------------------------
    def _plan(self) -> ForwardBatch | None:
        if self.chunked >= 0 and self.end[self.chunked] > self.prefix[self.chunked]:
            self._checkpoint(self.chunked, self.end[self.chunked])
            self.prefix[self.chunked] = self.end[self.chunked]
        new = self.last.who if self.last and self.last.prompts else []
        kept = [r for r in new if self.requests[r, c.STATE] != c.FINISHED and r != self.chunked]
        if len(kept) < len(new) or (kept and not self.runs):
            self.full = False
        had = len(self.runs) + len(kept)
        self.runs = [r for r in self.runs + kept if self.requests[r, c.STATE] != c.FINISHED]
        if len(self.runs) < had:
            self.full = False
        if chosen := self._prefill():
            return self._begin(chosen, True)
        chosen = self._decode() if self.runs else []
        return self._begin(chosen, False) if chosen else None

    def _allocatable(self, held: int = 0) -> int:
        seqs, runs = self.settings.max_num_seqs, len(self.runs)
        return min(seqs - runs, seqs - runs - self.rows + held)

    def _prefill(self) -> list[int]:
        """Return the requests whose prompts the step computes."""
        self.rows = int(self.chunked >= 0)
        self.full = self.full and bool(self.runs)
        if self.chunked < 0 and (self.full or not self.line):
            return []
        if self.chunked < 0 and self._allocatable() <= 0:
            self.full = True
            return []
        self._sort()
        self.total = sum(self._rest(r) * self.ratio for r in self.runs)
        self.current = 0
        self.input, self.chunk = MOST_PREFILL, self.settings.max_num_batched_tokens
        chosen: list[int] = []
        held = self.rows
        if (r := self.chunked) >= 0:
            most = min(self.chunk, int(self._left()))
            count = self._known(r) - self.prefix[r]
            most = most if most > 0 else self.chunk
            self.end[r] = self.prefix[r] + min(count, most)
            chosen.append(r)
            whole = count <= most
            self._charge(min(count, most), min(int(self.requests[r, c.MOST]), LONGEST_ESTIMATE) if whole else 0)
            self.chunked = -1 if whole else r
        for r in self.line:
            if self._budget() == "other":
                break
            self.full = self.full or len(chosen) >= self._allocatable(held)
            if self.full:
                break
            verdict = self._admit(r, chosen)
            if verdict == "no token":
                self.full = bool(chosen or self.runs)
            if verdict:
                break
        if chosen:
            self.line = [r for r in self.line if r not in chosen]
            self._take(sum(self.end[r] - self.prefix[r] for r in chosen))
        return chosen

    def _left(self) -> float:
        return self.free + self.tree.evictable - self.total

    def _budget(self) -> str:
        """Return why no more requests can be admitted; "" if more can be."""
        if self._left() <= 0 or self.free + self.tree.evictable - self.current <= 0:
            return "no token"
        return "other" if self.input <= 0 or self.chunk <= 0 else ""

    def _charge(self, count: int, more: int) -> None:
        self.total += count + 1 + more
        self.current += count + 1
        self.input -= count
        self.chunk -= count

    def _admit(self, r: int, chosen: list[int]) -> str:
        """Admit a waiting request to the step, if it fits. Returns why no more can be admitted ("": more can be)."""
        known = self._known(r)
        prefix, node = self.tree.find(self.texts[r][: known - 1])
        self.prefix[r] = self.ours[r] = prefix
        count = known - prefix
        self.tree.lock(node)
        if count + self._rest(r) + 1 >= self._left():
            self.tree.lock(node, -1)
            return "no token"
        more = min(int(self.requests[r, c.MOST]), LONGEST_ESTIMATE)
        if count > self.chunk:
            count, more, self.chunked = self.chunk, 0, r
        self.end[r], self.node[r] = prefix + count, node
        chosen.append(r)
        self._charge(count, more)
        row = self.requests[r]
        self.state[c.LOOKED_UP] += known
        self.state[c.HITS] += prefix
        if row[c.CACHED] < 0:
            row[c.CACHED] = prefix
        row[c.STATE] = c.RUNNING
        return self._budget()

    def _sort(self) -> None:
        """Sort the waiting requests by the policy, and look up their prefixes, so that these are evicted last."""
        policy = self.settings.policy
        if policy == "lof":
            self.line.sort(key=lambda r: -int(self.requests[r, c.MOST]))
        if policy in ("fcfs", "lof") or (policy == "lpm" and len(self.line) > SORTED_AT_MOST):
            if self.line and self.refreshes % REFRESH_EVERY == 0:
                for r in reversed(self.line[:SORTED_AT_MOST]):
                    self.tree.find(self.texts[r][: self._known(r)])
            self.refreshes += bool(self.line)
            return
        nodes = []
        seen, order = Radix(), {}
        for r in self.line:
            known = self._known(r)
            text = self.texts[r][:known]
            prefix, node = self.tree.find(text)
            nodes.append(node)
            order[r] = -float(min(prefix, known - 1))
            if prefix <= SHORT_PREFIX:
                if seen.find(text)[0] >= SHORT_PREFIX:
                    order[r] = FOREVER
                else:
                    seen.insert(text)
        if policy == "lpm":
            self.line.sort(key=order.__getitem__)
        else:
            self.line = [self.line[k] for k in self.tree.by_weight(nodes)]

    def _decode(self) -> list[int]:
        """Return the requests of which the step computes a token. If KV runs out, other requests lose theirs first.

        Requests whose last token is under way are left out; if there are any and KV runs out, the result is empty.
        """
        had, flying = len(self.runs), self.last.who if self.last and self.settings.async_scheduling else []
        ending = {r for r in flying if self.requests[r, c.DONE] + 1 >= self.requests[r, c.MOST]}
        self.runs = [r for r in self.runs if r not in ending]
        fits = self._fits(len(self.runs))
        if not self.runs or (ending and not fits):
            self.full = False
            return []
        if fits:
            self.ratio = max(self.ratio - (FIRST_RATIO - LEAST_RATIO) / DECAY_STEPS, LEAST_RATIO)
        else:
            self._retract()
        if len(self.runs) < had:
            self.full = False
        self._take(len(self.runs))
        for r in self.runs:
            self.prefix[r] = self.end[r]
            self.end[r] += 1
        return list(self.runs)

    def _fits(self, tokens: int) -> bool:
        if tokens > self.free:
            self.free += self.tree.evict(tokens - self.free)
        return self.free >= tokens

    def _take(self, tokens: int) -> None:
        if not self._fits(tokens):
            raise StateError("an engine plans a step for which it has no KV")
        self.free -= tokens

    def _retract(self) -> None:
        done, prompt = self.requests[:, c.DONE], self.requests[:, c.PROMPT]
        keep = sorted(self.runs, key=lambda r: (int(done[r]), -int(prompt[r])), reverse=True)
        while len(keep) > 1:
            r = keep.pop()
            self.free += self.end[r] - self.ours[r]
            self.tree.lock(self.node[r], -1)
            self._fits(len(keep) * RETRACT_STEPS)
            self.requests[r, c.PREEMPTED] += 1
            self.requests[r, c.STATE] = c.WAITING
            self.state[c.PREEMPTIONS] += 1
            self.line.append(r)
            if self._fits(len(keep)):
                break
        self.runs = keep
        most = int(self.requests[keep, c.MOST].sum())
        self.ratio = min(1.0, (int(done[keep].sum()) + RETRACT_STEPS * len(keep)) / (most + 1))

    # --- computing it ---------------------------------------------------------------------------------------------
    def _begin(self, who: list[int], prompts: bool) -> ForwardBatch:
        tokens, decode, chunks = 0, 0, 0.0
        for r in who:
            count = self.end[r] - self.prefix[r]
            tokens += count
            if prompts:
                chunks += count * (self.prefix[r] + count / 2)
            else:
                decode += self.end[r]
            self.requests[r, c.COMPUTED] = self.end[r]
        self.state[c.TOKENS_DONE] += tokens
        ms = self.settings.latency.step_ms(tokens, decode, chunks)
        return ForwardBatch(who, [self.end[r] for r in who], prompts, self.chunked if prompts else -1, ms)

    def _follow(self, step: ForwardBatch | None) -> None:
        """Begin to compute a step now (None: no step)."""
        self.step, self.next, self.state[c.LOOKED] = step, None, 0
        if step:
            self.clock[c.END] = self.clock[c.CLOCK] + step.ms / 1e3
        self._tell()

    def _complete(self, step: ForwardBatch) -> None:
        now, took = self.clock[c.END], self.clock[c.END] - self.clock[c.CLOCK]
        self.clock[c.BUSY] += took
        self.clock[c.KV_SECONDS] += took * (self.settings.num_blocks - 1 - self.state[c.FREE])
        self.clock[c.CLOCK] = now
        self.state[c.STEPS] += 1
        for r, end in zip(step.who, step.ends, strict=True):
            row, times = self.requests[r], self.times[r]
            if r == step.middle or row[c.STATE] != c.RUNNING:  # a request that has ended or been retracted since
                continue
            row[c.DONE] += 1
            if row[c.DONE] == 1:
                times[c.FIRST] = now
            else:
                times[c.GAP] = max(times[c.GAP], now - times[c.LAST])
            times[c.LAST] = now
            if row[c.DONE] == row[c.OUTPUT]:
                times[c.FINISH] = now
                row[c.STATE] = c.FINISHED
                self._checkpoint(r, self.end[r])
                self.tree.lock(self.node[r], -1)
                self.ended[self.state[c.ENDED]] = r
                self.state[c.ENDED] += 1
                self.done += 1
            elif step.prompts:
                self._checkpoint(r, end)

    def _checkpoint(self, r: int, tokens: int) -> None:
        """Give the KV of a request's first tokens to the tree. Tokens that the tree has already are freed."""
        text, prompt = self.texts[r][:tokens], int(self.requests[r, c.PROMPT])
        had = self.tree.insert(text)
        if 0 < prompt < tokens:
            self.tree.insert(text[:prompt])
        self.free += had - self.ours[r]
        node = self.tree.find(text)[1]
        self.ours[r] = tokens
        self.tree.lock(self.node[r], -1)
        self.tree.lock(node)
        self.node[r] = node


def new_engine(settings: EngineSettings, expected: int = 64) -> Engine:
    """Return an idle engine with these settings."""
    return (SGLang if settings.engine == "sglang" else Engine)(settings, expected)
