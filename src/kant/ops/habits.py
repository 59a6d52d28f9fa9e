"""Habits of tenants, learned from ended jobs: how accurate their limits are, and what they usually ask for.

A fact is one sentence about one user, with the numbers behind it. Facts are found by their words, as in a search engine
(BM25: S. Robertson and H. Zaragoza, Foundations and Trends in Information Retrieval 3(4), 2009). Rare words count most;
words that occur in most facts only rank the facts found by rarer words. MOBIMEM (arXiv 2512.15784) keeps a graph of
facts; for so few facts a dictionary of words suffices.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from math import log
from statistics import median

from msgspec import Struct

WORD = re.compile(r"[a-z0-9][a-z0-9_.@-]*")
COMMON = 200
"""A word of at least this many facts is looked up only if no rarer word was found, and only in so many facts."""
MOST = 20


class EndedJob(Struct, frozen=True, kw_only=True):
    """A job that has ended: its request, its time limit (-1: none), its run time, and how often it failed and was
    stopped before. Times are microseconds. `end` is `finished`, `failed` or `cancelled`.
    """

    user: str
    queue: str
    gpus: float
    limit_us: int
    ran_us: int
    end: str
    stops: int = 0
    failures: int = 0


class Habit(Struct, frozen=True):
    """A fact about a user: its subject, one number, the number of jobs that support it, and a sentence."""

    user: str
    about: str
    value: float
    jobs: int
    sentence: str


def habits_of(jobs: Iterable[EndedJob]) -> list[Habit]:
    """Return the facts about all users, ordered by user name."""
    by_user: dict[str, list[EndedJob]] = defaultdict(list)
    for job in jobs:
        by_user[job.user].append(job)
    return [habit for user in sorted(by_user) for habit in _of(user, by_user[user])]


def _of(user: str, jobs: list[EndedJob]) -> Iterable[Habit]:
    count = len(jobs)
    shares = [job.ran_us / job.limit_us for job in jobs if job.limit_us > 0 and job.end == "finished"]
    if shares:
        share = median(shares)
        text = f"jobs of {user} run for {share:.0%} of the time limit that they ask for, by the median"
        yield Habit(user, "limit", round(share, 4), len(shares), text)
    for gpus, times in Counter(job.gpus for job in jobs).most_common(3):
        text = f"{user} asks for {gpus:g} GPUs in {times} of {count} jobs"
        yield Habit(user, "shape", gpus, times, text)
    for queue, times in Counter(job.queue for job in jobs).most_common(2):
        yield Habit(user, "queue", times / count, times, f"{user} uses queue {queue} for {times} of {count} jobs")
    ran = median(job.ran_us for job in jobs) / 60e6
    yield Habit(user, "length", round(ran, 3), count, f"jobs of {user} run for {ran:.0f} minutes, by the median")
    failed = sum(job.end == "failed" or job.failures > 0 for job in jobs)
    if failed:
        yield Habit(
            user, "failures", failed / count, failed, f"{failed} of {count} jobs of {user} failed at least once"
        )
    stopped = [job for job in jobs if job.stops]
    if stopped:
        finished = sum(job.end == "finished" for job in stopped)
        text = f"{len(stopped)} of {count} jobs of {user} were preempted, and {finished} of these finished"
        yield Habit(user, "stops", finished / len(stopped), len(stopped), text)


class Habits:
    """An index of facts by their words. `looked_at` counts the index entries that questions have read so far."""

    def __init__(self, facts: Iterable[Habit]) -> None:
        self.facts = list(facts)
        self.looked_at = 0
        self._having: dict[str, list[int]] = defaultdict(list)
        self._words = [frozenset(_words(f"{fact.about} {fact.sentence}")) for fact in self.facts]
        for number, words in enumerate(self._words):
            for word in words:
                self._having[word].append(number)
        self._mean = sum(map(len, self._words)) / max(len(self._words), 1)

    def find(self, question: str, most: int = MOST) -> list[Habit]:
        """Return at most `most` facts that match a question, the best match first."""
        known = sorted((len(self._having[word]), word) for word in set(_words(question)) & self._having.keys())
        scores: dict[int, float] = defaultdict(float)
        for count, word in known:
            having = self._having[word]
            rare = count < COMMON
            weight = log(1 + (len(self.facts) - count + 0.5) / (count + 0.5))
            numbers = having[:COMMON] if rare or not scores else [n for n in scores if word in self._words[n]]
            for number in numbers:
                self.looked_at += 1
                length = len(self._words[number]) / self._mean
                scores[number] += weight * 2.2 / (1 + 1.2 * (0.25 + 0.75 * length))
        best = sorted(scores, key=lambda number: (-scores[number], number))[:most]
        return [self.facts[number] for number in best]


def _words(text: str) -> list[str]:
    found = (word.rstrip(".") for word in WORD.findall(text.lower()))
    return [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in found]
