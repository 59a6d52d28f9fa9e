"""Questions about the habits of 2,000 tenants at 10,000 facts, by a dictionary of words beside SQLite's search."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from benchmarks.measure import Figure, cpu_seconds
from kant.ops.habits import Habit, Habits

USERS, QUESTIONS = 2000, 500
ABOUT = ("limit", "shape", "queue", "length", "failures")


def measure() -> Iterator[Figure]:
    facts = [
        Habit(f"user-{number}", about, 0.5, 10, f"the {about} of user-{number} was counted in 10 of 12 jobs")
        for number in range(USERS)
        for about in ABOUT
    ]
    asked = [f"what is the {ABOUT[n % 5]} of user-{n * 37 % USERS}" for n in range(QUESTIONS)]
    own = Habits(facts)
    ours, found = cpu_seconds(lambda: [own.find(question, 1)[0] for question in asked], repeat=3)
    base = sqlite3.connect(":memory:")
    base.execute("create virtual table fact using fts5(sentence, tokenize = \"unicode61 tokenchars '-'\")")
    base.executemany("insert into fact values (?)", [(fact.sentence,) for fact in facts])
    query = "select rowid from fact where fact match ? order by rank limit 1"
    words = [" OR ".join(f'"{word}"' for word in question.split()) for question in asked]
    theirs, others = cpu_seconds(lambda: [base.execute(query, (each,)).fetchone()[0] for each in words], repeat=3)
    assert found == [facts[number - 1] for number in others], "both find the same facts"
    yield Figure(
        "habits", ours / QUESTIONS, "CPU s a question", theirs / ours, "SQLite FTS5", "one look-up of each word"
    )
