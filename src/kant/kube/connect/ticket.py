"""Tickets: a caller proves to the leader that it may read the leader's Lease, because the Lease contains the ticket.

The API server removes the caller's credentials from a request that it forwards to a Service, so the leader does not
learn who asks. The ticket itself is never sent: it is the key with which the question is signed.
"""

from __future__ import annotations

import hmac

PATH = "/v1/asked/"
"""The path at which the leader answers. The name of the question follows it."""

PROOF = "proof"
"""The last parameter of the question: the signature of everything before it."""

NOT_LEADING, NOT_YET, UNASKABLE = "NotLeading", "NotYet", "Unaskable"
"""Why a replica does not answer: the replica is on standby; the answer is not ready yet; the question is invalid."""


def signed(ticket: str, target: str) -> str:
    """Return the question `target`, a path with its query, with a signature added."""
    return f"{target}{'&' if '?' in target else '?'}{PROOF}={_signature(ticket, target)}"


def is_signed(ticket: str, target: str) -> bool:
    """Whether this question was signed with the ticket."""
    question, _, shown = target.rpartition(f"{PROOF}=")
    return hmac.compare_digest(_signature(ticket, question[:-1]).encode(), shown.encode())


def _signature(ticket: str, target: str) -> str:
    """Return the HMAC-SHA-256 in hexadecimal digits (RFC 2104)."""
    return hmac.digest(ticket.encode(), target.encode(), "sha256").hex()
