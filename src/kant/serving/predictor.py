"""A small model that ranks prompts by the length of their answers, trained on a CPU from (prompt, length) pairs.

Learning to Rank (arXiv 2408.15792) needs only the order of lengths, and learns it with ListMLE (Xia et al., ICML'08):
the likelihood of the true order of a list under the Plackett-Luce model. The paper trains a language model of 125
million parameters. Here words and pairs of words are hashed into a table of vectors, whose mean goes through one hidden
layer: half a million parameters, trained in seconds.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import msgspec
import numpy as np

from kant.files import read_bytes, write_bytes
from kant.model.errors import InputError
from kant.serving.columns import Table, Times

TABLE, WIDTH, HIDDEN = 1 << 14, 24, 32
LIST = 32
"""The number of pairs per list, as in the paper."""

EPOCHS = 12
RATE = 0.02
HELD_OUT = 0.1
MOST_WORDS = 512
WORD = re.compile(r"\w+|[^\w\s]")


class PromptPair(msgspec.Struct):
    """A prompt, and the number of tokens of its answer."""

    prompt: str
    output: int


def read_pairs(path: Path) -> list[PromptPair]:
    """Read the pairs of a file with a JSON object on each line; raises InputError with an invalid line."""
    decoder = msgspec.json.Decoder(PromptPair)
    found: list[PromptPair] = []
    for number, line in enumerate(read_bytes(path).split(b"\n"), 1):
        if line.strip():
            try:
                pair = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise InputError(f"{path}:{number}", f'{{"prompt": text, "output": tokens}} ({error})') from None
            if pair.output < 1:
                raise InputError(f"{path}:{number}: output", "a number of tokens from 1 on", pair.output)
            found.append(pair)
    if len(found) < 2 * LIST:
        raise InputError(str(path), f"at least {2 * LIST} pairs", len(found))
    return found


def features(prompt: str) -> Table:
    """Return the table rows that a prompt uses: words, pairs of words, and its length."""
    # the rest of the text is never processed
    words = [word[0].lower() for word in islice(WORD.finditer(prompt), MOST_WORDS)]
    grams = [*words, *(f"{a} {b}" for a, b in pairwise(words)), f"length {len(words).bit_length()}"]
    return np.array([zlib.crc32(gram.encode()) % TABLE for gram in grams], dtype=np.int64)


def listmle(scores: Times, order: Table) -> tuple[float, Times]:
    """Return the negative log-likelihood of an order (best first) under these scores, and its gradient."""
    sorted_scores = scores[order] - scores.max()
    weights = np.exp(sorted_scores)
    rest = np.cumsum(weights[::-1])[::-1]
    gradient = np.empty_like(scores)
    gradient[order] = weights * np.cumsum(1 / rest) - 1
    return float((np.log(rest) - sorted_scores).sum()), gradient


def kendall(first: Times, second: Times) -> float:
    """Return Kendall's tau-a over all pairs; ties count as 0."""
    signs = np.sign(first[:, None] - first) * np.sign(second[:, None] - second)
    count = len(first)
    return float(signs.sum() / (count * (count - 1)))


@dataclass(slots=True)
class LengthRanker:
    """A trained model. `rank` returns a score for each prompt, lower for shorter answers. Scores are not lengths."""

    table: Times
    hidden: Times
    bias: Times
    out: Times

    def rank(self, prompts: Sequence[str]) -> Times:
        """Return the score of each prompt."""
        return np.array([-self._forward(features(prompt))[0] for prompt in prompts])

    def _forward(self, rows: Table) -> tuple[float, Times, Times]:
        """Return the score (higher: shorter), the mean vector and the hidden layer."""
        mean = self.table[rows].mean(axis=0)
        layer = np.tanh(mean @ self.hidden + self.bias)
        return float(layer @ self.out), mean, layer

    def save(self, path: Path) -> None:
        """Write the model to a file for `load`."""
        content = io.BytesIO()
        np.savez_compressed(content, table=self.table, hidden=self.hidden, bias=self.bias, out=self.out)
        try:
            write_bytes(path, content.getvalue())
        except OSError as error:
            raise InputError(f"--out {path}", "a file that can be written", error.strerror) from None

    @classmethod
    def load(cls, path: Path) -> LengthRanker:
        """Read a model from a file; raises InputError if it is invalid."""
        try:
            with np.load(io.BytesIO(read_bytes(path)), allow_pickle=False) as file:
                return cls(file["table"], file["hidden"], file["bias"], file["out"])
        except (ValueError, KeyError, OSError, EOFError):
            raise InputError(str(path), "a model that `kant serve train` has written") from None


def train(pairs: Sequence[PromptPair], seed: int, epochs: int = EPOCHS) -> tuple[LengthRanker, float]:
    """Train a model. Returns it, and Kendall's tau between its scores and the lengths for the held-out tenth."""
    draw = np.random.Generator(np.random.PCG64(seed))
    shuffled = draw.permutation(len(pairs))
    cut = max(int(HELD_OUT * len(pairs)), 8)
    held, used = shuffled[:cut], shuffled[cut:]
    rows = [features(pair.prompt) for pair in pairs]
    lengths = np.array([pair.output for pair in pairs], dtype=np.float64)
    model = LengthRanker(
        0.1 * draw.standard_normal((TABLE, WIDTH)),
        draw.standard_normal((WIDTH, HIDDEN)) / WIDTH**0.5,
        np.zeros(HIDDEN),
        draw.standard_normal(HIDDEN) / HIDDEN**0.5,
    )
    squares = LengthRanker(*(np.full_like(part, 1e-6) for part in (model.table, model.hidden, model.bias, model.out)))
    for _ in range(epochs):
        used = used[draw.permutation(len(used))]
        for begin in range(0, len(used) - LIST + 1, LIST):
            _learn(model, squares, [rows[i] for i in used[begin : begin + LIST]], lengths[used[begin : begin + LIST]])
    ranks = np.array([-model._forward(rows[i])[0] for i in held])
    return model, kendall(ranks, lengths[held])


def _learn(model: LengthRanker, squares: LengthRanker, rows: list[Table], lengths: Times) -> None:
    """Run one step of Adagrad on one list."""
    passes = [model._forward(row) for row in rows]
    means = np.array([mean for _, mean, _ in passes])
    layers = np.array([layer for _, _, layer in passes])
    _, gradient = listmle(np.array([score for score, _, _ in passes]), np.argsort(lengths, kind="stable"))
    gradient /= len(rows)
    inner = (gradient[:, None] * model.out) * (1 - layers**2)
    outer = inner @ model.hidden.T
    for weight, square, change in (
        (model.out, squares.out, layers.T @ gradient),
        (model.hidden, squares.hidden, means.T @ inner),
        (model.bias, squares.bias, inner.sum(axis=0)),
    ):
        square += change**2
        weight -= RATE * change / np.sqrt(square)
    flat = np.concatenate(rows)
    change = np.repeat(outer / np.array([[len(row)] for row in rows]), [len(row) for row in rows], axis=0)
    touched, place = np.unique(flat, return_inverse=True)
    summed = np.zeros((len(touched), WIDTH))
    np.add.at(summed, place, change)
    squares.table[touched] += summed**2
    model.table[touched] -= RATE * summed / np.sqrt(squares.table[touched])
