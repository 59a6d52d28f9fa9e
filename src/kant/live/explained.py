"""Why a job waits, as an object for `--json` and for the API. This module is loaded on first use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from kant.insight.explanation import Explanation
from kant.insight.facts import fact_sentence
from kant.insight.more_nodes import more_nodes_remedy, more_nodes_sentence
from kant.insight.starts_now import NoChange, StartsNow, change_sentence
from kant.insight.suggestions import suggestion_sentence
from kant.live.answers import either, start_json
from kant.live.sentences import public_id, with_public_ids
from kant.model.decision import sentence


def as_json(found: Explanation) -> dict[str, Any]:
    """Return the explanation of a wait as one object."""
    return {
        "reason": found.reason,
        "sentence": sentence(found.reason) if found.reason is not None else "",
        "facts": [{"fact": each, "sentence": fact_sentence(each)} for each in found.facts],
        "remedies": [{"remedy": each, "sentence": suggestion_sentence(each)} for each in found.suggestions],
        "among_rivals": {"rank": found.among_competitors.rank, "of": found.among_competitors.of},
        "in_queue": {"rank": found.in_queue.rank, "of": found.in_queue.of},
        "wait_or_place": either(found.choice),
        "as_of_us": found.as_of,
        "starts_now_if": changes_json(found.starts_now),
        "more_nodes": [
            msgspec.to_builtins(one) | {"sentence": more_nodes_sentence(one), "remedy": more_nodes_remedy(one)}
            for one in found.more_nodes
        ],
    } | start_json(found.expected, found.reason)


def changes_json(found: tuple[StartsNow, ...] | NoChange) -> dict[str, Any]:
    """Return the changes that start a job now, with public job ids; `none` says why no change does."""
    if isinstance(found, NoChange):
        return {"changes": [], "none": found.why}
    changes = []
    for change in found:
        stopped = tuple(with_public_ids(each) for each in change.stopped)
        own = msgspec.structs.replace(change, stopped=stopped, yields=public_id(change.yields))
        exact = {"cheapest": own.is_cheapest, "sentence": change_sentence(own)}
        changes.append(msgspec.to_builtins(own) | exact)
    return {"changes": changes, "none": None}


def known(found: Explanation) -> Explanation:
    """Return the explanation with public job ids: in a live run a job may be submitted to the core more than once."""
    return replace(
        found,
        job=public_id(found.job),
        reason=with_public_ids(found.reason) if found.reason is not None else None,
        facts=tuple(with_public_ids(each) for each in found.facts),
        suggestions=tuple(with_public_ids(each) for each in found.suggestions),
    )
