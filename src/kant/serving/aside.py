"""Lets another process make a router's decision, since it takes milliseconds to simulate engines ahead.

The question, as bytes, has everything that `Router.choose` sees of observed engines, and the state of the random draws.
The answer has the choice, and the new state of the draws. So every process makes the same decision.
"""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np

from kant.serving.engine import EngineSettings
from kant.serving.first_token import DONE, ENGINE, ORDER, PREDICTED, PROMPT
from kant.serving.routing import Draw, Incoming, Router, decide
from kant.serving.site import LoadTable, ObservedSite


def question(
    router: Router, request: Incoming, sites: list[ObservedSite], loads: LoadTable, draw: Draw, settings: EngineSettings
) -> bytes:
    """Return, as bytes, what another process needs to choose an engine for `request`. All `sites` have the settings
    `settings`, except for the size of their KV.
    """
    seen = [
        (s.row, s.number, s.settings.num_blocks, s.settings.block_size, s.other_requests, s.other_tokens)
        for s in sites
    ]  # fmt: skip
    asked = loads.asked[: len(loads.sent)]
    return pickle.dumps((router, request, seen, asked, draw, settings), pickle.HIGHEST_PROTOCOL)


def understood(asked: bytes) -> tuple[Router, Incoming, list[ObservedSite], Draw]:
    """Return the content of a question. The copies of the engines have the same requests in the same order."""
    router, request, seen, sent, draw, settings = pickle.loads(asked)
    table = LoadTable(len(seen))
    sites: dict[int, ObservedSite] = {}
    for row, number, blocks, size, requests, tokens in seen:
        site = sites[row] = ObservedSite(replace(settings, num_blocks=blocks, block_size=size), number, table)
        site.beside(requests, tokens)
    for key, one in enumerate(sent[np.argsort(sent[:, ORDER])].tolist()):
        if (row := int(one[ENGINE])) in sites:
            sites[row].send(key, int(one[PROMPT]), one[PREDICTED])
            sites[row].said(key, int(one[DONE]))
    return router, request, list(sites.values()), draw


def answer(asked: bytes) -> bytes:
    """Return the answer: the index of the engine (or HOLD), and the state of the draws."""
    router, request, sites, draw = understood(asked)
    return pickle.dumps((decide(router, request, sites, draw), draw), pickle.HIGHEST_PROTOCOL)


def answered(said: bytes) -> tuple[int, Draw]:
    """Return the choice and the draws of an answer."""
    found: tuple[int, Draw] = pickle.loads(said)
    return found
