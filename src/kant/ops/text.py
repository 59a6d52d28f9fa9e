"""The form of answers: limited in length, in pages, and with text that tenants wrote marked as such.

A tenant chooses a job's name and its log, so both may be written to deceive an assistant that reads them. They appear
only under `untrusted`, on one line, without control characters. Ids that are not plain words are percent-encoded.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote, unquote

from kant.model.errors import InputError

MOST = 6000
"""The maximum length of one answer in characters of JSON: about 2,000 tokens."""
LONGEST = 400
"""The maximum length of one text in an answer, in characters."""
PLAIN = "._-~/@+:"


def safe_id(text: str) -> str:
    """An id or a name as one plain word; other characters are percent-encoded."""
    found = quote(text, safe=PLAIN)
    return found if len(found) <= 200 else found[:197] + "..."


def meant(text: str) -> str:
    """Decode an id encoded by `safe_id`."""
    return unquote(text)


def one_line(text: str, most: int = LONGEST) -> str:
    """Return a text without line ends, control characters and invisible formatting characters, cut to `most`."""
    shown = "".join(" " if ch in "\n\r\t" else ch for ch in text)
    shown = "".join(ch for ch in shown if unicodedata.category(ch)[0] != "C")
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def untrusted(**texts: str) -> dict[str, Any]:
    """Texts of tenants, as they appear in an answer; {} if all are empty."""
    found = {name: one_line(text) for name, text in texts.items() if text}
    return {"untrusted": found} if found else {}


def texts_of_tenants(value: Any, theirs: bool = False) -> Iterator[str]:
    """The texts of an answer that are under `untrusted`."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from texts_of_tenants(each, theirs or key == "untrusted")
    elif isinstance(value, list):
        for each in value:
            yield from texts_of_tenants(each, theirs)
    elif theirs and isinstance(value, str):
        yield value


def cleaned(value: Any, encoded: dict[str, str]) -> Any:
    """Return an answer with each text on one line, and with the job ids in its sentences replaced by encoded ids."""
    if isinstance(value, str):
        for raw, safe in encoded.items():
            value = value.replace(raw, safe)
        return one_line(value)
    if isinstance(value, dict):
        return {str(key): cleaned(each, encoded) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(each, encoded) for each in value]
    return value


def encoded_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return the ids that `safe_id` changes, each with its encoding, the longest first."""
    odd = {each for each in ids if safe_id(each) != each}
    return {each: safe_id(each) for each in sorted(odd, key=len, reverse=True)}


def length(value: Any) -> int:
    """The length of an answer in characters of JSON."""
    return len(json.dumps(value, ensure_ascii=False, default=str))


def page(rows: Sequence[dict[str, Any]], name: str, cursor: str, most: int = MOST) -> dict[str, Any]:
    """Return as many rows as fit, from `cursor` on. `next` is the cursor of the next page; None if this is the last."""
    if cursor and not (cursor.isdecimal() and len(cursor) < 10):
        raise InputError("cursor", "the `next` of the previous page, or nothing", cursor)
    first = int(cursor or 0)
    taken: list[dict[str, Any]] = []
    size = 200
    for row in rows[first:]:
        size += length(row) + 2
        if taken and size > most:
            break
        taken.append(row)
    last = first + len(taken)
    return {name: taken, "total": len(rows), "next": str(last) if last < len(rows) else None}


def bounded(answer: dict[str, Any], most: int = MOST) -> dict[str, Any]:
    """Return an answer of at most `most` characters: its lists are cut, and say how many entries were cut."""
    for keep in (20, 8, 3, 1, 0):
        if length(answer) <= most:
            break
        answer = _cut(answer, keep)
    return answer


def _cut(value: Any, keep: int) -> Any:
    if isinstance(value, dict):
        return {key: _cut(each, keep) for key, each in value.items()}
    if isinstance(value, list):
        shown = [_cut(each, keep) for each in value[:keep]]
        return [*shown, f"and {len(value) - keep} more"] if len(value) > keep else shown
    return value
