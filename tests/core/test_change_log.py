"""A copy of a state follows its own log of changes."""

from __future__ import annotations

from copy import deepcopy

from kant.cluster.change_log import ChangeLog


def test_a_deep_copy_is_a_log_of_its_own() -> None:
    log = ChangeLog()
    log.add(3)
    copied = deepcopy(log)
    copied.add(4)
    assert (copied.end, copied.since(1), log.end) == (2, [4], 1)
