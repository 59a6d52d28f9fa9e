"""Plans of the game: by a greedy rule, and by a beam search whose states are rated by playing them to the end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kant.optimize.residency import kernels as k
from kant.optimize.residency.program import COPY, DROP, KEEP, BufferAction, Program, duration, uses_of

LEAST = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""The thresholds of the greedy rule: how many ticks a buffer must save per unit of size and step."""
WIDTH = 24
"""The number of states that the beam keeps."""


@dataclass(slots=True)
class Game:
    """A program while its actions are chosen. By step: `free` memory, `supply` of copy time, and ticks of `reads`."""

    uses: k.Numbers
    compute: k.Numbers
    done: k.Numbers
    starts: k.Numbers
    free: k.Numbers
    supply: k.Numbers
    reads: k.Numbers

    def fork(self) -> Game:
        """An independent copy of the game."""
        mine = (self.done.copy(), self.starts.copy(), self.free.copy(), self.supply.copy(), self.reads.copy())
        return Game(self.uses, self.compute, *mine)

    def act(self, use: int, move: int) -> bool:
        """Carry out a move, if possible; returns whether it was."""
        return bool(k.attempt(self.uses, use, move, self.done, self.starts, self.free, self.supply, self.reads))

    def play(self, first: int, least: float) -> int:
        """Play to the end by the rule. Returns how many ticks the program takes."""
        state = (self.done, self.starts, self.free, self.supply, self.reads)
        return int(k.play(self.uses, first, least, self.compute, *state))

    def choices(self) -> tuple[BufferAction, ...]:
        """The choice made at each use."""
        action = {k.DROP: DROP, k.KEEP: KEEP, k.LATE: COPY, k.EARLY: COPY}
        return tuple(
            BufferAction(action[move], start if move >= k.LATE else -1)
            for move, start in zip(self.done.tolist(), self.starts.tolist(), strict=True)
        )


def begin(program: Program) -> Game:
    """The game before its first move."""
    rows = [(use.step, use.size, use.ticks, use.before, int(use.made)) for use in uses_of(program)]
    uses = np.array(rows, dtype=np.int64).reshape(-1, 5)
    compute = np.array([step.compute for step in program.steps], dtype=np.int64)
    n = len(program.steps)
    free = np.full(n, program.capacity, dtype=np.int64)
    done, starts = np.zeros(len(uses), dtype=np.int64), np.full(len(uses), -1, dtype=np.int64)
    return Game(uses, compute, done, starts, free, compute.copy(), np.zeros(n, dtype=np.int64))


def greedy(program: Program) -> tuple[BufferAction, ...]:
    """The best of the plans that the greedy rule makes with its thresholds."""
    best: tuple[int, tuple[BufferAction, ...]] | None = None
    for least in LEAST:
        game = begin(program)
        took = game.play(0, least)
        if best is None or took < best[0]:
            best = took, game.choices()
    assert best is not None
    return best[1]


def beam(program: Program, width: int = WIDTH) -> tuple[BufferAction, ...]:
    """The best plan of a beam search, which tries all moves at each use and keeps the states with the best
    continuations. The plan is never worse than that of `greedy`.
    """
    states = [begin(program)]
    best = greedy(program)
    took = duration(program, best)
    for use in range(len(states[0].uses)):
        judged: list[tuple[int, int, int, Game]] = []
        for n, state in enumerate(states):
            for move in (k.KEEP, k.LATE, k.EARLY, k.DROP):
                game = state.fork()
                if not game.act(use, move):
                    continue
                ends = []
                for least in LEAST:
                    trial = game.fork()
                    ends.append(trial.play(use + 1, least))
                    if ends[-1] < took:
                        took, best = ends[-1], trial.choices()
                judged.append((min(ends), sum(ends), 4 * n + move, game))
        judged.sort(key=lambda each: each[:3])
        states, seen = [], set()
        for *_, game in judged:
            mark = (game.free.tobytes(), game.supply.tobytes(), game.reads.tobytes(), game.done[: use + 1].tobytes())
            if mark not in seen:
                seen.add(mark)
                states.append(game)
            if len(states) == width:
                break
    return best
