"""Why a pod that waits is no job yet: something is wrong with it, is not there yet, or has to be told apart first."""

from __future__ import annotations


class MalformedError(Exception):
    """What is wrong with an object, in one sentence."""


class NoMatchingNodeError(MalformedError):
    """No node will do, as nodes are now: others may come."""


class NotYetError(MalformedError):
    """Nothing is wrong: what it needs is not there yet."""


class StaleFlavorsError(Exception):
    """The state has to be built anew before this pod can be understood: it tells nodes apart as nobody did before."""
