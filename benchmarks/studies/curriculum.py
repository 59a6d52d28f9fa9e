"""Reasoning trees: which queries they say to train on, and what building them in gaps costs others.

`python -m benchmarks.studies.curriculum` writes docs/studies/curriculum.md with the example plug-in in
examples/curriculum, in a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import kant
from kant.metrics.paired import Interval, mean_interval

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "studies" / "curriculum.md"
PLUG_IN = ROOT / "examples" / "curriculum"
sys.path.insert(0, str(PLUG_IN))
import kant_curriculum as curriculum  # noqa: E402
import kant_fill  # noqa: E402
import kant_trees as trees  # noqa: E402

SEEDS = range(5)
TREES, TIMES = 300, 8
UPDATES = (5, 10, 20)
MONTHS = (("philly", 0.6), ("helios-venus", 0.8), ("helios-venus", 0.95))
QUERIES = (17_000, 100_000, 900_000)


def by_seed(seed: int) -> dict[str, list[tuple[float, float]]]:
    """Of each score, by updates: its rank correlation with the gain, and the gain of its top third over the mean."""
    rng = np.random.default_rng(seed)
    marks = curriculum.draw(TREES, rng)
    each = curriculum.gains(np.repeat(marks, TIMES, axis=0), UPDATES, rng)
    gained = [gain.reshape(TREES, TIMES).mean(axis=1) for gain in each]
    right = marks.mean(axis=1)
    scores = {
        "accuracy": right,
        "p (1 - p)": right * (1 - right),
        "greedy, 4 decisions (published)": curriculum.greedy(marks),
        **{f"exact, {m} edit{'s' * (m > 1)}": curriculum.exact(marks, m) for m in (1, 2, 3, 4)},
    }
    found = {}
    for name, score in scores.items():
        top = np.argsort(-score, kind="stable")[: TREES // 3]
        found[name] = [
            (
                float(np.corrcoef(curriculum.ranked(score), curriculum.ranked(gain))[0, 1]),
                float(gain[top].mean() / gain.mean()),
            )
            for gain in gained
        ]
    return found


def scores() -> Iterator[str]:
    yield "| score | " + " | ".join(f"rank correlation, {n} updates | top third, {n}" for n in UPDATES) + " |"
    yield "|---" * (1 + 2 * len(UPDATES)) + "|"
    every = [by_seed(seed) for seed in SEEDS]
    for name in every[0]:
        cells = []
        for at in range(len(UPDATES)):
            rho, top = (mean_interval([one[name][at][k] for one in every]) for k in (0, 1))
            cells.append(f"{rho.mean:.2f} ± {rho.half:.2f} | {top.mean:.2f} ± {top.half:.2f}")
        yield f"| {name} | {' | '.join(cells)} |"


def percent(interval: Interval) -> str:
    return f"{100 * interval.mean:.1f} ± {100 * interval.half:.1f} %"


def fills() -> Iterator[str]:
    yield "| jobs of others | load | profile | queries | GPUs in use without | with | trees | stops | others that start or end at another time | longer wait, mean |"  # noqa: E501
    yield "|---" * 10 + "|"
    profiles = {
        "`kant`": kant.Profile.read("kant"),
        "`fill.toml`": kant.Profile.read("kant").using(discipline=kant_fill.Fill()),
    }
    for row, load in MONTHS:
        drawn = [kant.Workload.generate(row, gpus=128, load=load, days=4, seed=seed) for seed in SEEDS]
        for name, profile in profiles.items():
            for queries in QUERIES:
                found = [trees.fill(jobs, "16x8", profile, 4, queries) for jobs in drawn]
                alone, used = (mean_interval([getattr(one, of) for one in found]) for of in ("used_alone", "used"))
                yield (
                    f"| {row} | {load} | {name} | {queries:,} | {percent(alone)} | {percent(used)} "
                    f"| {sum(one.trees for one in found) / len(found):,.0f} "
                    f"| {sum(one.stops for one in found) / len(found):.0f} "
                    f"| {sum(one.moved for one in found)} of {sum(one.others for one in found):,} "
                    f"| {sum(one.delay_s * one.others for one in found) / sum(one.others for one in found):.1f} s |"
                )


def over_time() -> Iterator[str]:
    yield "| done | linear: first | middle | last | sigmoid: first | middle | last |"
    yield "|---" * 7 + "|"
    ranks = np.array([2.0, 1.0, 0.0])
    for done in (0.0, 0.25, 0.5, 0.75, 1.0):
        cells = [f"{each:.2f}" for law in ("linear", "sigmoid") for each in curriculum.weights(ranks, done, law=law)]
        yield f"| {done:.0%} | {' | '.join(cells)} |"


ABOUT = f"""\
# A curriculum from reasoning trees, built on idle GPUs

Made by `python -m benchmarks.studies.curriculum`, with [an example plug-in](../extending.md#work-that-fills-gaps).

Re-Schedule (arXiv 2510.24832) trains a model by RL with verifiable rewards on those queries first that can improve
soon. It samples a tree of answers for each query, 4 branches at each of 4 decisions, and scores how much accuracy a few
decisions would add. It publishes 48.5 on the average of six benchmarks for Qwen2.5-Math-7B, 44.3 for GRPO and 46.6 for
a curriculum by accuracy; the trees cost 48.5 % of the training time.

## The scores

{TREES} drawn trees for each of {len(SEEDS)} seeds, whose mistakes lie together or apart by chance; each is trained
alone, {TIMES} times, by GRPO with groups of eight on a table of its decisions. *Rank correlation* is Spearman's, of
the score with the accuracy gained. *Top third* is what the third of the trees with the highest score gains, over the
mean of all: 1.0 is a random third. Intervals are 95 % by Student's t over seeds. No model is trained here, so the
benchmarks of the paper are not judged.
"""
AFTER = """
An edit makes one decision of the tree always take its best branch; the exact score is the best of that many edits, by
dynamic programming. After ten updates one edit is at 0.9, like the published score; accuracy is useless, and
p (1 - p), which needs no tree, is the strongest simple baseline. After twenty updates two edits are better than the
published score: what counts grows with the updates a query still gets. With as many edits as decisions the score is one
less the accuracy, nearly, and useless early.

## Weights over time

Three queries of the first, the middle and the last rank. As printed, the paper ranks the mixture, which flips in
the middle of the training for both laws; this is the reading in which weights move.
"""
FILL = """
## Trees in the gaps of a cluster

A tree takes 38 GPU-seconds (22.7 h on eight GPUs for 17,000 queries). Batches of 48 queries are jobs of one GPU with a
priority below all others; they may be stopped at any time, which loses the current tree. All exist from the
start, with four drawn days of a cluster of 128 GPUs, five seeds each. `fill.toml` is `kant` with the discipline of
the plug-in: all other jobs are decided as if no trees ran, a tree whose GPU one of them takes is stopped at once, and
the other trees take the rest. Two runs of each seed, with and without trees; others are compared one by one.
"""
SAID = """
The 17,000 queries of the paper's data set are done within four days on every cluster. Under `fill.toml` no other job
starts, ends or is preempted at another time in any run, whatever the backlog of trees; 900,000 queries keep 98.7 to
100 % of all GPUs in use. That holds by construction where a stop takes no time, as in the simulator: on a cluster the
other job waits for the grace of the tree that it stops. Quotas count fillers like other jobs, so give them a queue of
their own. Under `kant` as it is shipped some others move: a tree that has just begun is protected for five minutes
(`min_run_s`), and places are chosen around what runs. Jobs of negative priority are no typical pods for the placement,
under either.
"""


def main() -> None:
    lines = [ABOUT, *scores(), AFTER, *over_time(), FILL, *fills(), SAID]
    PAGE.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
