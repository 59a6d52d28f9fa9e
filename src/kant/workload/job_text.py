"""A job in one line of text, such as `gpus=8,pods=16,time=4h,queue=vision,within=leaf`.

The words are the columns of Kant's own trace table, without their units; `time` is the run time. Times are durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kant.model.errors import InputError
from kant.model.units import parse_duration
from kant.workload.kant_table import FIELDS, trace_of
from kant.workload.table import MAX_TIME, Field, Table, parse_number
from kant.workload.workload import Workload

_LEFT_OUT = ("submit_s", "core", "overhead_s")


def _word(field: Field) -> str:
    return "time" if field.name == "runtime_s" else field.name.removesuffix("_s")


WORDS = {_word(field): field for field in FIELDS if field.name not in _LEFT_OUT}
"""The words that describe a job, and their columns."""


def parse_jobs(texts: Sequence[str], now: int, where: str) -> Workload:
    """Return the jobs that `texts` describe, submitted at `now`. `where` names the texts in error messages.

    Raises InputError for a word that is not in `WORDS`, for a missing word, and for an invalid value.
    """
    numbers: dict[str, list[int]] = {f.name: [] for f in FIELDS if f.kind != "text"}
    strings: dict[str, list[str]] = {f.name: [] for f in FIELDS if f.kind == "text"}
    for number, text in enumerate(texts, start=1):
        said = _said(text, where) | {}
        said.setdefault("id", f"whatif-{number}")
        for field in FIELDS:
            value = said.get(_word(field)) if field.name not in _LEFT_OUT else None
            if field.kind == "text":
                strings[field.name].append(value or str(field.default or ""))
            elif field.name == "submit_s":
                numbers[field.name].append(now)
            else:
                numbers[field.name].append(_number(field, value, where))
    table = Table(len(texts), {k: np.array(v, dtype=np.int64) for k, v in numbers.items()}, strings)
    jobs = trace_of(Path(where), table)["jobs"]
    assert isinstance(jobs, Workload)
    return jobs


def _said(text: str, where: str) -> dict[str, str]:
    said: dict[str, str] = {}
    for part in text.split(","):
        word, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or word in said:
            raise InputError(where, "words such as gpus=8,pods=16,time=4h,queue=vision, each once", part)
        if word not in WORDS:
            raise InputError(where, f"words of {', '.join(WORDS)}", word)
        said[word] = value
    for word in ("gpus", "time"):
        if word not in said:
            raise InputError(where, f"also {word}, such as {word}={'8' if word == 'gpus' else '4h'}", text)
    return said


def _number(field: Field, value: str | None, where: str) -> int:
    if value is None:
        assert isinstance(field.default, int), "the words without a default are required"
        return field.default
    place = f"{where}: {_word(field)}"
    if field.kind == "seconds":
        time = parse_duration(value, place)
        if not 0 <= time <= MAX_TIME or (field.name == "runtime_s" and time == 0):
            raise InputError(place, "a duration of at most 3,170 years, and longer than 0", value)
        return time
    try:
        return parse_number(field, value)
    except ValueError:
        raise InputError(place, field.expected, value) from None
