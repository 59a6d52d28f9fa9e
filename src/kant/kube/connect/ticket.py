"""A question to the leader shows that whoever asks may read its Lease, on which the ticket stands.

The API server takes the caller's credentials off a request that it passes on to a Service, so the leader does not learn
who asks. The ticket itself never goes along: the question is signed with it.
"""

from __future__ import annotations

import hmac

PATH = "/v1/asked/"
"""Where the leader answers, followed by the word that is asked."""

PROOF = "proof"
"""The last parameter of the question: the signature of all that stands before it."""

NOT_LEADING, NOT_YET, UNASKABLE = "NotLeading", "NotYet", "Unaskable"
"""What a replica that does not answer says: it stands by; ask again; the question itself is wrong."""


def signed(ticket: str, target: str) -> str:
    """The question `target`, a path with its query, with its signature."""
    return f"{target}{'&' if '?' in target else '?'}{PROOF}={_signature(ticket, target)}"


def is_signed(ticket: str, target: str) -> bool:
    """Whether somebody who has the ticket has signed this question."""
    question, _, shown = target.rpartition(f"{PROOF}=")
    return hmac.compare_digest(_signature(ticket, question[:-1]).encode(), shown.encode())


def _signature(ticket: str, target: str) -> str:
    """HMAC-SHA-256 in hexadecimal digits (RFC 2104)."""
    return hmac.digest(ticket.encode(), target.encode(), "sha256").hex()
