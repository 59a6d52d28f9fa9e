"""Which queries are worth training on next, by their reasoning trees (Re-Schedule, arXiv 2510.24832).

A tree of a query branches `k` ways at each of `d` steps of its answers; its leaves are marked right (1) or wrong (0).
The published score of a query, greedy, says how much accuracy a few decisions would add. The exact one here is found by
dynamic programming: an edit makes one decision of the tree always take its best branch, and the score is what the best
`edits` edits add to the probability of a right answer. The more updates the training still has, the more edits count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """Trees with `k` branches at each of `d` decisions."""

    k: int = 4
    d: int = 4

    @property
    def leaves(self) -> int:
        return self.k**self.d

    def first(self, level: int) -> int:
        """The number of the first node of a level, where nodes are numbered level by level."""
        return (self.k**level - 1) // (self.k - 1)


SHAPE = Shape()


def checked(marks: Floats, shape: Shape) -> Floats:
    """The marks of trees, one row each; raises ValueError where they are not marks of such trees."""
    rows = np.atleast_2d(np.asarray(marks, dtype=float))
    if rows.shape[1] != shape.leaves or not np.isin(rows, (0.0, 1.0)).all():
        raise ValueError(f"trees: expected {shape.leaves} marks of 0 or 1 each, got {rows.shape[1]} or other numbers")
    return rows


def exact(marks: Floats, edits: int, shape: Shape = SHAPE) -> Floats:
    """The exact score of each tree: what the best `edits` edits add to its accuracy.

    With value(node, m) the best accuracy below a node by m edits: without an edit there, its children share the m; with
    one, the best child has the m - 1 others. As many edits as decisions give 1 where any leaf is right.
    """
    if edits < 0:
        raise ValueError(f"edits: expected a number from 0 on, got {edits}")
    trees = checked(marks, shape)
    value = np.repeat(trees[:, :, None], edits + 1, axis=2)  # tree, node, edits
    for _ in range(shape.d):
        children = value.reshape(len(trees), -1, shape.k, edits + 1)
        shared = children[:, :, 0]
        for child in range(1, shape.k):
            more = np.full_like(shared, -1.0)
            for m in range(edits + 1):
                for there in range(m + 1):
                    more[..., m] = np.maximum(
                        more[..., m], shared[..., m - there] + children[:, :, child, :][..., there]
                    )
            shared = more
        value = shared / shape.k
        value[..., 1:] = np.maximum(value[..., 1:], children[..., :-1].max(axis=2))
    return np.asarray(value[:, 0, edits] - value[:, 0, 0])


def greedy(marks: Floats, most: int = 4, shape: Shape = SHAPE) -> Floats:
    """The published score: the gains of up to `most` decisions that do not rule each other out, the largest first.

    The gain of a decision is the accuracy of all leaves that are left if its branches but the best are cut off, less
    that of the tree.
    """
    return np.array([_greedy(tree, most, shape) for tree in checked(marks, shape)])


def _greedy(tree: Floats, most: int, shape: Shape) -> float:
    k, found = shape.k, []
    for level in range(shape.d):
        width = k ** (shape.d - level)
        for node, below in enumerate(tree.reshape(-1, width)):
            of_child = below.reshape(k, -1).sum(axis=1)
            best = int(of_child.argmax())
            left = shape.leaves - width + width // k
            found.append(((tree.sum() - below.sum() + of_child[best]) / left - tree.mean(), level, node, best))
    chosen: list[tuple[float, int, int, int]] = []
    for gain, level, node, best in sorted(found, reverse=True):
        if gain <= 0 or len(chosen) == most:
            break
        if not any(_cut_off(each, (gain, level, node, best), k) for each in chosen):
            chosen.append((gain, level, node, best))
    return sum(each[0] for each in chosen)


def _cut_off(one: tuple[float, int, int, int], other: tuple[float, int, int, int], k: int) -> bool:
    """Whether one of two decisions cuts the other off."""
    (_, high, node, best), (_, low, inner, _) = sorted((one, other), key=lambda each: each[1])
    if high == low or inner // k ** (low - high) != node:
        return False
    return inner // k ** (low - high - 1) % k != best


def edits_for(updates: int) -> int:
    """The edits that count when a query gets so many more updates: one for up to ten, and one more for each ten."""
    return max(1, (updates + 9) // 10)


def weights(
    scores: Floats,
    done: float,
    low: float = 0.5,
    high: float = 2.0,
    law: Literal["linear", "sigmoid"] = "sigmoid",
) -> Floats:
    """The weight of each query in the loss after the part `done` (0 to 1) of the training: easy ones first, hard last.

    The rank of a score goes from 0 to 1. As printed, the rank is taken of the mixture, which is a flip in the middle of
    the training for both laws; this is the reading in which the weights move.
    """
    if not 0 <= done <= 1:
        raise ValueError(f"done: expected a part from 0 to 1, got {done}")
    ranks = ranked(scores) / max(len(scores) - 1, 1)
    late = done if law == "linear" else 1 / (1 + np.exp(-10 * (done - 0.5)))
    mixed = (1 - late) * ranks + late * (1 - ranks)
    return np.asarray(low + mixed * (high - low))


def ranked(values: Floats) -> Floats:
    """The rank of each value from 0 on; equal ones have the mean of theirs."""
    _, which, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    return np.asarray((counts.cumsum() - (counts + 1) / 2)[which])


def draw(count: int, rng: np.random.Generator, shape: Shape = SHAPE) -> Floats:
    """Marks of trees whose mistakes lie together or apart by chance; none is nearly all right or wrong."""
    found: list[Any] = []
    while len(found) < count:
        concentration = np.exp(rng.uniform(np.log(0.15), np.log(8), shape.d))
        right = np.array([rng.beta(1.2, 1.8)])
        for level in range(shape.d):
            right = np.clip(np.repeat(right, shape.k), 0.005, 0.995)
            right = rng.beta(right * concentration[level] + 1e-3, (1 - right) * concentration[level] + 1e-3)
        marks = (rng.random(shape.leaves) < right).astype(float)
        if 0.02 <= marks.mean() <= 0.98:
            found.append(marks)
    return np.array(found)


def accuracy(logits: Floats, marks: Floats, shape: Shape = SHAPE) -> Floats:
    """The probability of a right answer of each tree, under the logits of its decisions (tree, node, branch)."""
    value = marks
    for level in range(shape.d - 1, -1, -1):
        here = _softmax(logits[:, shape.first(level) : shape.first(level + 1)])
        value = (here * value.reshape(*here.shape)).sum(axis=2)
    return value[:, 0]


def gains(
    marks: Floats,
    at: tuple[int, ...],
    rng: np.random.Generator,
    group: int = 8,
    rate: float = 0.6,
    shape: Shape = SHAPE,
) -> list[Floats]:
    """What each tree has gained in accuracy after so many updates of GRPO with groups of `group` answers.

    The policy of a tree is a table: logits of each decision, which begin equal.
    """
    trees, rows = len(marks), np.arange(len(marks))[:, None]
    logits = np.zeros((trees, shape.first(shape.d), shape.k))
    before, found = accuracy(logits, marks, shape), []
    for step in range(1, max(at) + 1):
        node = np.zeros((trees, group), int)
        path = []
        for level in range(shape.d):
            here = shape.first(level) + node
            chance = _softmax(logits[rows, here])
            branch = (rng.random((trees, group, 1)) > chance.cumsum(axis=2)).sum(axis=2).clip(0, shape.k - 1)
            path.append((here, branch, chance))
            node = node * shape.k + branch
        right = marks[rows, node]
        spread = right.std(axis=1, keepdims=True)
        better = np.where(spread > 0, (right - right.mean(axis=1, keepdims=True)) / (spread + 1e-6), 0.0)
        for here, branch, chance in path:
            change = (np.eye(shape.k)[branch] - chance) * better[:, :, None]
            np.add.at(logits, (rows, here), rate * change / group)
        if step in at:
            found.append(accuracy(logits, marks, shape) - before)
    return found


def _softmax(logits: Floats) -> Floats:
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))
