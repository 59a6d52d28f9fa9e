"""The search for victims in compiled calls: the best set found of running jobs without which a gang fits.

`cheapest_of_few` and `cheapest_of_many` ask again and again whether the gang fits once a set of candidates has left.
For most gangs a count of free places answers (`Counted`), and the whole search is one compiled call. If the gang must
be placed to find out, or quotas are not in tables, the same functions run as plain Python.

A set is an array with 1 for each candidate in it. Candidates are in order of rank, cost, milli-GPUs and row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.cluster.holders import LIMB, Candidates, Weights
from kant.cluster.quota_condition import QuotaCondition, admits
from kant.compiled import compiled, inlined
from kant.placement.clearing import branch_and_bound, move_entry
from kant.placement.fits import capacity
from kant.placement.guesses import OPTION_WIDTH, Newcomer, find_options, guess

GUESS = 32
"""A guess by node counts as one trial placement per 32 candidates."""

TRIALS_SO_FAR, KNOWN_SO_FAR = range(2)  # indices of `counts`
KNOWN = 1 << 12
"""Maximum size of the table that remembers which sets suffice."""


class Counted(NamedTuple):
    """The nodes after a set of candidates has left, for a gang of one group. It fits if `pods` places are free in one
    domain (`domain` of each node; all nodes are in one domain if the gang may be anywhere).

    `free` are the places on each node, `totals` those in each domain. `out` and `which` are sets of candidates: those
    that have left by now, and those about which a search asks. `keys` and `answers` remember which sets suffice: the
    key of a set is the bitwise XOR of random numbers of its members.
    """

    table: Table
    demands: Table
    d: int
    pods: int
    candidates: Candidates
    domain: Table
    free: Table
    totals: Table
    out: Table
    which: Table
    random: Table
    keys: Table
    answers: Table
    counts: Table
    quota: QuotaCondition


@compiled
def count_without(view: Counted, which: Table) -> bool:
    """Return whether the gang fits once a set has left. The answer for a set is remembered."""
    key = 1
    for i in range(which.shape[0]):
        if which[i] == 1:
            key ^= view.random[i]
    size = view.keys.shape[0]
    at = key % size
    while view.keys[at] != 0 and view.keys[at] != key:
        at = (at + 1) % size
    if view.keys[at] == key:
        return bool(view.answers[at] == 1)
    answer = 0
    if admits(view.quota, which):
        _let_leave(view, which)
        view.counts[TRIALS_SO_FAR] += 1
        for domain in range(view.totals.shape[0]):
            if view.totals[domain] >= view.pods:
                answer = 1
    if 2 * view.counts[KNOWN_SO_FAR] < size:
        view.keys[at], view.answers[at] = key, answer
        view.counts[KNOWN_SO_FAR] += 1
    return bool(answer == 1)


@inlined
def _let_leave(view: Counted, which: Table) -> None:
    """Change the nodes to the state in which exactly this set has left."""
    entries, holders = view.candidates.entries_of, view.candidates.holders
    for i in range(which.shape[0]):
        if view.out[i] != which[i]:
            view.out[i] = which[i]
            for k in range(view.candidates.first_of[i], view.candidates.first_of[i + 1]):
                move_entry(view.table, holders, view.demands, entries[k], which[i] == 0)
                place = view.candidates.place_of[entries[k]]
                before = view.free[place]
                view.free[place] = capacity(view.table, holders.nodes[place], view.demands, view.d)
                view.totals[view.domain[place]] += view.free[place] - before


@inlined
def _suffices(view: Counted, which: Table) -> bool:
    return count_without(view, which)  # not inlined: that would take seconds to compile in each caller


@compiled
def is_admitted(view: Counted, which: Table) -> bool:
    """Return whether the quota admits the newcomer once a set has left."""
    return admits(view.quota, which)


@inlined
def _admitted(view: Counted, which: Table) -> bool:
    return is_admitted(view, which)


@inlined
def _move_in_set(view: Any, i: int, taking: bool) -> None:
    view.which[i] = 0 if taking else 1


@inlined
def _held(which: Table, amounts: Table) -> int:
    total = 0
    for i in range(which.shape[0]):
        if which[i] == 1:
            total += amounts[i]
    return total


@inlined
def no_one(count: int) -> Table:
    """Return an empty set."""
    return np.zeros(count, dtype=np.int64)


@inlined
def copy_set(source: Table, target: Table) -> None:
    """Copy a set. Numba takes seconds to compile a slice assignment, with its check for unequal shapes."""
    for i in range(target.shape[0]):
        target[i] = source[i]


@inlined
def is_better(candidates: Candidates, one: Table, other: Table) -> bool:
    """Return whether the first of two sets is better: by the worst rank, cost, milli-GPUs, number and rows."""
    rank, other_rank, cost, milli, number = -1, -1, 0, 0, 0
    for i in range(one.shape[0]):
        if one[i] == 1:
            rank = candidates.rank[i]
        if other[i] == 1:
            other_rank = candidates.rank[i]
        sign = one[i] - other[i]
        cost, milli, number = cost + sign * candidates.cost[i], milli + sign * candidates.milli[i], number + sign
    for less in (rank - other_rank, cost, milli, number):
        if less != 0:
            return bool(less < 0)
    for i in candidates.by_row:
        if one[i] != other[i]:
            return bool(one[i] == 1)
    return False


# --- the search --------------------------------------------------------------------------------------------------

Suffices = Callable[[Any, Table], bool]
Inline = Callable[[Any], Any]


class Search(NamedTuple):
    """The functions of a search for victims."""

    cheapest_of_few: Callable[..., bool]
    cheapest_of_many: Callable[..., bool]
    without_unneeded: Callable[..., None]


def make_search(suffices: Suffices, admitted: Suffices, kernel: Inline, inline: Inline) -> Search:
    """Build the search. `suffices(view, which)` returns whether the gang fits and is within quota once a set has left,
    `admitted(view, which)` only whether it is within quota. `view.counts` counts trial placements.
    """

    @inline
    def asked(view: Any) -> bool:
        return suffices(view, view.which)

    lightest_set = inline(branch_and_bound(_move_in_set, asked))

    @inline
    def without_unneeded(view: Any, which: Table, order: Table, by_quota: bool) -> None:
        """Take unneeded members out of `which`, tested in the given order.

        Members are tested in batches that double after each success. If `suffices` is monotone, the result equals
        testing one by one, in about k log(n / k) tests for k members of n: the idea of U. Junker, QuickXplain, AAAI
        2004. With `by_quota` the test is `admitted`.
        """
        own, count = np.zeros(order.shape[0], dtype=np.int64), 0
        for i in order:
            if which[i] == 1:
                own[count] = i
                count += 1
        place, batch = 0, 1
        while place < count:
            fewer = which.copy()
            for k in range(place, min(place + batch, count)):
                fewer[own[k]] = 0
            enough = admitted(view, fewer) if by_quota else suffices(view, fewer)
            if enough:
                copy_set(fewer, which)
                place, batch = place + batch, 2 * batch
            elif batch > 1:
                batch //= 2
            else:
                place += 1

    @inline
    def extend(view: Any, which: Table, light: Table) -> None:
        """Add to `which` as few of the lightest others as are needed to suffice."""
        others = np.zeros(light.shape[0], dtype=np.int64)
        low, high = 0, 0
        for i in light:
            if which[i] == 0:
                others[high] = i
                high += 1
        more = which.copy()
        while low < high:
            middle = (low + high) // 2
            copy_set(which, more)
            for k in range(middle):
                more[others[k]] = 1
            if suffices(view, more):
                high = middle
            else:
                low = middle + 1
        for k in range(low):
            which[others[k]] = 1

    @inline
    def set_first(which: Table, count: int) -> Table:
        """Make `which` the set of the first candidates."""
        for i in range(which.shape[0]):
            which[i] = 1 if i < count else 0
        return which

    def cheapest_of_few(view: Any, candidates: Candidates, cap: int, best: Table) -> bool:
        """Write the best of all sets within the cap to `best`; return False if none suffices."""
        which, count = view.which, best.shape[0]
        best[:] = 0
        if suffices(view, best):
            return True
        weights = Weights(candidates.upper[0], candidates.lower[0], candidates.capped, np.ones(count, dtype=np.bool_))
        order, who, twin, found = np.zeros((4, count + 1), dtype=np.int64)
        stack, bound = np.zeros((count + 2, 6), dtype=np.int64), np.zeros(2, dtype=np.int64)
        twin[:] = -1
        if not suffices(view, set_first(which, count)):
            return False
        for end in range(1, count + 1):
            if end < count and candidates.rank[end] == candidates.rank[end - 1]:
                continue
            if not suffices(view, set_first(which, end)):
                continue
            bound[0] = 1 << LIMB  # more than any weight
            for turn in range(2):  # first find the least weight, then the set of this weight with the smallest rows
                at = 0
                for k in range(count):
                    i = candidates.by_row[k] if turn == 1 else candidates.light[0, count - 1 - k]
                    if i < end:
                        order[at] = who[at] = i
                        at += 1
                set_first(which, end)
                if lightest_set(
                    view, weights, order, who, twin, end, cap, turn == 1, 1 << LIMB, bound, stack, found
                ) != 1:  # fmt: skip
                    break
            else:
                for k in range(end):
                    best[order[k]] = found[k]
                return True
        return False

    @inline
    def improve(
        view: Any, newcomer: Newcomer, candidates: Candidates, weighting: int, end: int, cap: int, limit: int,
        heavy: Table, options: Table, leaves: NDArray[np.bool_], best: Table,
    ) -> None:  # fmt: skip
        """Replace `best` by a better set found by letting one of its members stay, the heaviest first."""
        found, nobody, before = no_one(best.shape[0]), no_one(best.shape[0]), best.copy()
        upper, lower = candidates.upper[weighting], candidates.lower[weighting]
        for kept in heavy:
            if before[kept] == 0:
                continue
            if view.counts[TRIALS_SO_FAR] >= limit:
                break
            view.counts[TRIALS_SO_FAR] += end // GUESS  # the cost of a guess
            if guess(
                newcomer, candidates, upper, lower, candidates.heavy[weighting], end, nobody, cap, kept, options,
                leaves, found,
            ) and suffices(view, found):  # fmt: skip
                without_unneeded(view, found, heavy, False)
                if is_better(candidates, found, best):
                    copy_set(found, best)

    @inline
    def up_to(
        view: Any, newcomer: Newcomer, candidates: Candidates, end: int, cap: int, limit: int, best: Table
    ) -> bool:
        """Find the best set among the first `end` candidates: the cheapest, or the smallest if that is over the cap."""
        count, nodes = best.shape[0], candidates.holders.nodes.shape[0]
        everyone, start, which = no_one(count), no_one(count), no_one(count)
        set_first(everyone, end)
        left, d = newcomer.groups[0]
        places, versions = np.arange(nodes), np.zeros(nodes, dtype=np.int64)
        for weighting in range(0, 4, 2):
            light = candidates.light[weighting // 2]
            light = light[light < end]
            heavy, dense = light[::-1].copy(), candidates.dense[weighting // 2]
            dense = dense[dense < end]
            options = np.zeros((2, nodes, OPTION_WIDTH), dtype=np.int64)
            leaves = np.zeros((2, nodes, max(candidates.holders.widest, 1)), dtype=np.bool_)
            found, step, done = False, 0, False
            while not done:
                # Guesses: by weight, and by weight divided among the nodes of a gang; each starts from the empty set,
                # and from the set of candidates that must leave for the quota. Then all candidates; all without the
                # heaviest; and all without those with the most weight per GPU.
                if step < 4:
                    own = weighting + step // 2
                    if step == 1:
                        copy_set(everyone, start)
                        without_unneeded(view, start, heavy, True)
                    skipped = (step % 2 == 1 and _held(start, everyone) == 0) or (step >= 2 and not candidates.shared)
                    which[:] = 0
                    if step % 2 == 1:
                        copy_set(start, which)
                    if not skipped and step % 2 == 0:
                        weights = Weights(
                            candidates.upper[own], candidates.lower[own], candidates.capped, np.arange(count) < end
                        )
                        find_options(
                            newcomer.table, newcomer.demands, d, left, places, candidates, candidates.heavy[own],
                            weights, cap, versions, options[step // 2], leaves[step // 2],
                        )  # fmt: skip
                    if not skipped:
                        began = which.copy()
                        skipped = not guess(
                            newcomer, candidates, candidates.upper[own], candidates.lower[own], candidates.heavy[own],
                            end, began, cap, np.int64(-1), options[step // 2], leaves[step // 2], which,
                        )  # fmt: skip
                    if not skipped:
                        extend(view, which, light)
                else:
                    skipped = False
                    copy_set(everyone, which)
                if not skipped:
                    without_unneeded(view, which, dense if step == 5 else heavy, False)
                step += 1
                done = step == 6
                if not skipped:
                    if _held(which, candidates.capped) <= cap and suffices(view, which):
                        if not found or is_better(candidates, which, best):
                            copy_set(which, best)
                        found = True
                    done = done or (found and view.counts[TRIALS_SO_FAR] >= limit)
            if found:
                improve(view, newcomer, candidates, weighting, end, cap, limit, heavy, options[0], leaves[0], best)
                return True
        return False

    @inline
    def lowest_ranks(
        view: Any, newcomer: Newcomer, candidates: Candidates, cap: int, limit: int, monotone: bool, best: Table
    ) -> bool:
        """Write to `best` the best set found among candidates up to the lowest rank with which a set is found."""
        count = best.shape[0]
        which, found = no_one(count), no_one(count)
        best[:] = 0
        if suffices(view, best):
            return True
        if not suffices(view, set_first(which, count)):
            return False
        if monotone:
            for i in range(count):
                which[i] = 1 if candidates.capped[i] <= cap else 0
            if not suffices(view, which):
                return False
        ends = np.zeros(count, dtype=np.int64)
        top = -1
        for i in range(count):
            if i + 1 == count or candidates.rank[i] != candidates.rank[i + 1]:
                top += 1
                ends[top] = i + 1
        low, high = 0, top
        while low < high:
            middle = (low + high) // 2
            if suffices(view, set_first(which, ends[middle])):
                high = middle
            else:
                low = middle + 1
        at, high = low, -1  # the class to try, and the lowest one in which a set is found
        while True:
            if up_to(view, newcomer, candidates, ends[at], cap, limit, found):
                copy_set(found, best)
                high = at
            elif high < 0 and at == top:
                return False
            else:
                low = at
            if high < 0:
                at = top
            elif high - low <= 1 or view.counts[TRIALS_SO_FAR] >= limit:
                return True
            else:
                at = (low + high) // 2

    def cheapest_of_many(
        view: Any, newcomer: Newcomer, candidates: Candidates, cap: int, limit: int, monotone: bool, best: Table
    ) -> bool:
        """Write the best set found within the cap to `best`; none of its members can be left out.

        Returns False if it finds no set. With `monotone`, more free capacity never prevents the gang from fitting.
        After `limit` trial placements the best set so far is taken.
        """
        if not lowest_ranks(view, newcomer, candidates, cap, limit, monotone, best):
            return False
        before = no_one(best.shape[0])
        while _held(before, before) != _held(best, best):
            copy_set(best, before)
            without_unneeded(view, best, np.arange(best.shape[0])[::-1].copy(), False)
        return True

    return Search(kernel(cheapest_of_few), kernel(cheapest_of_many), without_unneeded)


def _as_it_is(function: Any) -> Any:
    return function


COUNTING = make_search(_suffices, _admitted, compiled, inlined)
"""The search for gangs for which `Counted` can decide whether they fit."""


class Asked(Protocol):
    """What a search in plain Python asks: whether the gang fits, and is within quota, without a set (bits) of jobs."""

    which: Table
    counts: Table

    def suffices(self, which: int) -> bool: ...
    def admitted(self, which: int) -> bool: ...


def as_bits(which: Table) -> int:
    """Return a set as the bits of one integer."""
    return int.from_bytes(np.packbits(which == 1, bitorder="little").tobytes(), "little")


ASKING = make_search(
    lambda view, which: view.suffices(as_bits(which)), lambda view, which: view.admitted(as_bits(which)),
    _as_it_is, _as_it_is,
)  # fmt: skip
"""The search for all other gangs, in plain Python; its `view` is an `Asked`."""
