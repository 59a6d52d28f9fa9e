"""The tree of quotas decides as the plain model of it does, and lends only what comes back."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.naive_quota import NaiveQuotas, levelled

from kant.cluster.lending import lent
from kant.cluster.quota_columns import reach
from kant.cluster.quota_limits import Key
from kant.cluster.quota_tree import QuotaTree, Shortage
from kant.cluster.water_filling import divided
from kant.model.errors import InputError, StateError
from kant.model.tenant import Queue, QueueConfig, Quota, accepts, runs, starts, validated

KEYS: tuple[Key, ...] = (("", "gpu"), ("H100", "gpu"), ("H100", "memory"))
LIMITS = st.sampled_from((-1, -1, 0, 1, 3, 8))


@st.composite
def tenancies(draw: st.DrawFn, most: int = 7, limited: bool = True) -> QueueConfig:
    """A forest of any shape, its queues in any order."""
    limits = LIMITS if limited else st.just(-1)
    queues: list[Queue] = []
    for number in range(draw(st.integers(1, most))):
        parent = draw(st.sampled_from(["", *(queue.name for queue in queues), *(queue.name for queue in queues[-1:])]))
        quotas = tuple(
            Quota(resource, model, draw(st.integers(0, 9)), draw(limits), draw(limits), draw(limits))  # type: ignore[arg-type]
            for model, resource in KEYS
            if draw(st.integers(0, 3))
        )
        isolated = limited and draw(st.integers(0, 5)) == 0
        queues.append(Queue(f"q{number}", parent, draw(st.integers(1, 4)), isolated, quotas=quotas))
    return QueueConfig(tuple(draw(st.permutations(queues))))


Step = tuple[str, int, int, tuple[int, int, int]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("admit", "admit", "admit", "force", "refund")),
        st.integers(0, 100),
        st.integers(0, 2),
        st.tuples(*[st.integers(0, 6)] * 3),
    ),
    max_size=14,
)


class Both:
    """A tree and its plain model, to which the same happens."""

    def __init__(self, queue_config: QueueConfig) -> None:
        self.tree, self.naive = QuotaTree(queue_config), NaiveQuotas(queue_config)
        self.jobs: list[tuple[int, int, tuple[int, ...]]] = []

    def name(self, queue: int) -> str:
        return self.tree.queues[queue].name

    def of(self, amounts: tuple[int, ...]) -> dict[Key, int]:
        return dict(zip(self.tree.keys, amounts, strict=True))

    def happens(self, steps: list[Step], force: bool = True) -> None:
        for what, pick, user, wanted in steps:
            queue, amounts = pick % len(self.tree.queues), wanted[: len(self.tree.keys)]
            if what == "refund":
                if self.jobs:
                    self.refund(pick % len(self.jobs))
                continue
            shortage = self.tree.shortage(queue, user, amounts)
            assert (shortage is None) == self.naive.fits(self.name(queue), user, self.of(amounts))
            if shortage is None or (what == "force" and force):
                self.charge(queue, user, amounts)

    def charge(self, queue: int, user: int, amounts: tuple[int, ...]) -> None:
        self.tree.charge(queue, user, amounts)
        self.naive.held.append((self.name(queue), user, self.of(amounts)))
        self.jobs.append((queue, user, amounts))

    def refund(self, number: int) -> None:
        self.tree.refund(*self.jobs.pop(number))
        del self.naive.held[number]


def amounts_used(tree: QuotaTree) -> list[tuple[int, ...]]:
    return [tuple(tree.usage(node, key) for key in range(len(tree.keys))) for node in range(len(tree.queues))]


@given(tenancies(), STEPS)
def test_the_tree_agrees_with_the_plain_model(queue_config: QueueConfig, steps: list[Step]) -> None:
    both = Both(queue_config)
    both.happens(steps)
    tree, naive = both.tree, both.naive
    tree.check(both.jobs)
    for node, queue in enumerate(tree.queues):
        for number, key in enumerate(tree.keys):
            usage, quota = naive.usage(queue.name, key), naive.quota(queue.name, key)
            assert tree.usage(node, number) == usage
            assert tree.nominal(node, number) == quota
            assert tree.borrowed(node, number) == max(0, usage - quota)
            assert max(0, tree.available(node, number)) == naive.largest(queue.name, key)
            if naive.limits(queue.name, key).user_limit != -1:
                assert all(tree.held_by(node, u, number) == naive.of_user(queue.name, u, key) for u in range(3))


@given(tenancies(), STEPS, st.tuples(*[st.integers(0, 12)] * 3))
def test_a_shortage_names_the_limit_that_binds(
    queue_config: QueueConfig, steps: list[Step], wanted: tuple[int, ...]
) -> None:
    both = Both(queue_config)
    both.happens(steps)
    tree, naive, amounts = both.tree, both.naive, wanted[: len(both.tree.keys)]
    for node, queue in enumerate(tree.queues):
        shortage = tree.shortage(node, 1, amounts)
        if shortage is None:
            continue
        name, key = both.name(shortage.queue), tree.keys.index(shortage.key)
        assert shortage.queue in tree.path(node)
        assert shortage.asked == amounts[key] > shortage.available
        if shortage.kind == "user":
            limit = naive.limits(name, shortage.key).user_limit
            assert shortage.available == limit - naive.of_user(name, 1, shortage.key)
        else:
            assert shortage.available == tree.available(node, key)
            assert name in naive.passed(queue.name, shortage.key, max(0, shortage.available) + 1)
            assert (shortage.kind == "quota") == (
                tree.queues[shortage.queue].isolated or tree.path(node)[-1:] == (shortage.queue,)
            )


@given(tenancies())
def test_the_ceiling_is_what_fits_where_nobody_uses_anything(queue_config: QueueConfig) -> None:
    tree, naive = QuotaTree(queue_config), NaiveQuotas(queue_config)
    for node, queue in enumerate(tree.queues):
        for number, key in enumerate(tree.keys):
            ceiling = tree.ceiling(node, number)
            assert ceiling == tree.available(node, number) == naive.largest(queue.name, key)
            for amount in (ceiling, ceiling + 1):
                amounts = tuple(amount if k == number else 0 for k in range(len(tree.keys)))
                assert tree.shortage_ever(node, amounts) == tree.shortage(node, 1, amounts)
                assert (tree.shortage_ever(node, amounts) is None) == naive.fits(queue.name, 1, {key: amount})


@given(tenancies(), STEPS)
def test_what_was_admitted_stays_within_quota_and_what_may_be_borrowed(
    queue_config: QueueConfig, steps: list[Step]
) -> None:
    both = Both(queue_config)
    both.happens(steps, force=False)
    tree = both.tree
    for number, key in enumerate(tree.keys):
        for node in range(len(tree.queues)):
            assert tree.usage(node, number) <= tree.ceiling(node, number)
            assert tree.available(node, number) >= 0
        for root in (node for node, parent in enumerate(tree.parents) if parent < 0):
            below = [node for node in range(len(tree.queues)) if root in tree.path(node)]
            nominal = sum(q.nominal for node in below for q in tree.queues[node].quotas if (q.model, q.resource) == key)
            assert sum(amounts[number] for queue, _, amounts in both.jobs if queue in below) <= nominal


@given(tenancies(), STEPS, STEPS)
def test_a_refund_undoes_a_charge_exactly(queue_config: QueueConfig, steps: list[Step], more: list[Step]) -> None:
    both = Both(queue_config)
    both.happens(steps)
    before, jobs = both.tree.copy(), list(both.jobs)
    for _, pick, user, wanted in more:
        both.charge(pick % len(queue_config.queues), user, wanted[: len(both.tree.keys)])
    for number in sorted(range(len(jobs), len(both.jobs)), key=lambda n: n * 7919 % 13)[::-1]:
        both.tree.refund(*both.jobs[number])
    assert amounts_used(both.tree) == amounts_used(before)
    both.tree.check(jobs)


@given(tenancies(), STEPS, STEPS)
def test_a_copy_is_independent(queue_config: QueueConfig, steps: list[Step], more: list[Step]) -> None:
    both = Both(queue_config)
    both.happens(steps)
    copy = both.tree.copy()
    for _, pick, user, wanted in more:
        copy.charge(pick % len(queue_config.queues), user, wanted[: len(copy.keys)])
    both.tree.check(both.jobs)
    fresh = both.tree.copy()
    jobs = list(both.jobs)
    both.happens(more)
    fresh.check(jobs)


@given(tenancies(), STEPS)
def test_a_lender_can_use_its_nominal_once_what_it_lent_is_given_back(
    queue_config: QueueConfig, steps: list[Step]
) -> None:
    both = Both(queue_config)
    both.happens(steps)
    tree = both.tree

    def borrowers() -> list[int]:
        """Jobs whose own queue holds more than its own nominal amounts."""
        own: dict[tuple[int, str, str], int] = {
            (node, q.model, q.resource): q.nominal for node, queue in enumerate(tree.queues) for q in queue.quotas
        }
        held = dict.fromkeys(((node, *key) for node in range(len(tree.queues)) for key in tree.keys), 0)
        for queue, _, amounts in both.jobs:
            for key, amount in zip(tree.keys, amounts, strict=True):
                held[(queue, *key)] += amount
        over = {slot[0] for slot, amount in held.items() if amount > own.get(slot, 0)}
        return [number for number, (queue, _, _) in enumerate(both.jobs) if queue in over]

    while numbers := borrowers():
        both.refund(numbers[-1])
    for node in range(len(tree.queues)):
        for key in range(len(tree.keys)):
            left = tree.nominal(node, key) - tree.usage(node, key)
            assert tree.available(node, key) >= left >= 0


@given(tenancies(), STEPS)
def test_an_isolated_queue_neither_lends_nor_borrows(queue_config: QueueConfig, steps: list[Step]) -> None:
    queues = tuple(msgspec.structs.replace(queue, isolated=True) for queue in queue_config.queues)
    both = Both(QueueConfig(queues))
    both.happens(steps, force=False)
    for node, queue in enumerate(both.tree.queues):
        own: dict[Key, int] = {(q.model, q.resource): q.nominal for q in queue.quotas}
        for number, key in enumerate(both.tree.keys):
            held = sum(amounts[number] for other, _, amounts in both.jobs if other == node)
            assert both.tree.available(node, number) == own.get(key, 0) - held


# --- fair shares -----------------------------------------------------------------------------------------------

WANTS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), min_size=1, max_size=6)


@given(st.integers(0, 120), WANTS)
def test_dividing_is_weighted_max_min_fair(total: int, pairs: list[tuple[int, int]]) -> None:
    wants, weights = [want for want, _ in pairs], [weight for _, weight in pairs]
    parts = divided(total, wants, weights)
    assert sum(parts) == min(total, sum(wants))
    assert all(0 <= part <= want for part, want in zip(parts, wants, strict=True))
    for part, exact in zip(parts, levelled(Fraction(total), wants, weights), strict=True):
        assert abs(part - exact) < 1
    for i, j in ((i, j) for i in range(len(wants)) for j in range(len(wants)) if i != j and parts[i] < wants[i]):
        # i wants more; it could take a unit of j only by making j as poor as itself or poorer.
        assert Fraction(parts[j] - 1, weights[j]) <= Fraction(parts[i] + 1, weights[i])


@given(tenancies(), st.lists(st.integers(0, 20), min_size=7, max_size=7))
def test_fair_shares_cover_quotas_first_and_can_all_be_charged(queue_config: QueueConfig, wanted: list[int]) -> None:
    tree, naive = QuotaTree(queue_config), NaiveQuotas(queue_config)
    demand = wanted[: len(tree.queues)]
    for number, key in enumerate(tree.keys):
        shares = tree.fair_shares(number, demand)
        exact = naive.fair_shares(key, {queue.name: demand[node] for node, queue in enumerate(tree.queues)})
        full = QuotaTree(queue_config)
        for node, queue in enumerate(tree.queues):
            assert abs(shares[node] - exact[queue.name]) < len(tree.path(node))
            if tree.is_leaf[node]:
                assert min(demand[node], tree.nominal(node, number)) <= shares[node] <= demand[node]
                amounts = tuple(shares[node] if k == number else 0 for k in range(len(tree.keys)))
                # Users' limits are not part of the division: a user for each queue, and only the other kinds count.
                shortage = full.shortage(node, node, amounts)
                assert shortage is None or shortage.kind == "user"
                full.charge(node, node, amounts)
            below = [child for child, parent in enumerate(tree.parents) if parent == node]
            passed_up = sum(max(0, shares[c] - _guaranteed(naive, tree, c, key)) for c in below)
            assert passed_up <= shares[node] <= tree.ceiling(node, number)


def _guaranteed(naive: NaiveQuotas, tree: QuotaTree, node: int, key: Key) -> int:
    name = tree.queues[node].name
    return naive.quota(name, key) - naive.lends(name, key)


# --- by example ------------------------------------------------------------------------------------------------


def two_teams(**fields: int) -> QuotaTree:
    """Teams a (with `fields` in its quota) and b with 8 GPUs each under one root."""
    a, b = Quota(nominal=8, **fields), Quota(nominal=8)  # type: ignore[arg-type]
    return QuotaTree(QueueConfig((Queue("root"), Queue("a", "root", quotas=(a,)), Queue("b", "root", quotas=(b,)))))


def test_a_queue_borrows_what_its_neighbour_leaves_and_no_more() -> None:
    tree = two_teams(borrowing_limit=4)
    assert tree.available(tree.index["a"], 0) == 12
    assert tree.shortage(1, 0, (13,)) == Shortage(1, ("", "gpu"), 13, 12, "borrowing")
    tree.charge(2, 0, (6,))
    assert tree.shortage(1, 0, (11,)) == Shortage(0, ("", "gpu"), 11, 10, "quota")


def test_of_two_limits_that_bind_alike_the_nearer_one_is_named() -> None:
    assert two_teams(borrowing_limit=8).shortage(1, 0, (17,)) == Shortage(1, ("", "gpu"), 17, 16, "borrowing")


def test_what_is_left_is_divided_by_weight_up_to_what_each_may_borrow() -> None:
    queues = (
        Queue("root", quotas=(Quota(nominal=4),)),
        Queue("idle", "root", quotas=(Quota(nominal=60),)),
        Queue("a", "root", quotas=(Quota(nominal=10),)),
        Queue("b", "root", weight=3, quotas=(Quota(nominal=10),)),
        Queue("c", "root", weight=4, quotas=(Quota(borrowing_limit=5),)),
    )
    # 84 in all: idle takes 4, a and b their 10 each, c 5 of the 60 left; 55 are for a and b as 1 to 3.
    assert QuotaTree(QueueConfig(queues)).fair_shares(0, [0, 4, 90, 90, 90])[1:] == [4, 24, 51, 5]


def test_what_is_not_lent_stays_available_though_the_rest_is_overdrawn() -> None:
    tree = two_teams(lending_limit=3)
    tree.charge(2, 0, (14,))
    assert (tree.available(1, 0), tree.available(2, 0)) == (5, -3)
    assert tree.borrowed(2, 0) == 6


def test_a_user_is_limited_in_a_queue_and_below() -> None:
    quotas = (Quota(nominal=20, user_limit=10),)
    tree = QuotaTree(QueueConfig((Queue("root", quotas=quotas), Queue("a", "root"), Queue("b", "root"))))
    tree.charge(1, 7, (6,))
    assert tree.shortage(2, 7, (5,)) == Shortage(0, ("", "gpu"), 5, 4, "user")
    assert tree.shortage(2, 8, (5,)) is None
    assert tree.shortage_ever(2, (11,)) is not None
    tree.refund(1, 7, (6,))
    assert tree.shortage(2, 7, (10,)) is None


@given(tenancies(), STEPS)
def test_what_is_lent_is_what_is_borrowed(queue_config: QueueConfig, steps: list[Step]) -> None:
    """Nobody lends what it uses or may not lend; what children borrow is lent by others, if not by those above."""
    both = Both(queue_config)
    both.happens(steps)
    tree = both.tree
    width = len(tree.keys)
    for key in range(width):
        given_away = lent(tree, key)
        for node, below in enumerate(tree.children):
            spare = tree.nominal(node, key) - max(tree.usage(node, key), tree._guaranteed[node * width + key])
            assert 0 <= given_away[node] <= max(0, spare)
            beyond = tree.own(node, key) + sum(tree.borrowed(child, key) for child in below)
            covered = tree._nominal[node * width + key] + tree.borrowed(node, key)
            assert not below or sum(given_away[child] for child in below) == max(0, beyond + given_away[node] - covered)
        assert all(given_away[node] == 0 for node, parent in enumerate(tree.parents) if parent < 0)


def test_two_that_lend_give_the_same() -> None:
    """16 of its own for a and b each, 8 for c, which uses 24."""
    queues = [Queue(name, "all", quotas=(Quota("gpu", "", 16_000 if name != "c" else 8_000),)) for name in "abc"]
    tree = QuotaTree(QueueConfig((Queue("all"), *queues)))
    tree.charge(3, 0, (24_000,))
    tree.charge(1, 0, (12_000,))
    assert lent(tree, 0) == [0, 4_000, 12_000, 0]


def test_what_was_lent_is_taken_back_below_the_node_that_lends() -> None:
    eight = (Quota(nominal=8),)
    names = {"root": "", "x": "root", "y": "root", "x1": "x", "x2": "x", "y1": "y"}
    queues = tuple(Queue(name, parent, quotas=eight if name[-1].isdigit() else ()) for name, parent in names.items())
    tree = QuotaTree(QueueConfig(queues))
    root, x, y, x1, x2, y1 = range(6)
    parts, entitled = (np.array(one, dtype=np.int64) for one in (tree.nominal_parts, tree.nominal_quotas))

    def scope(asked: int) -> int:
        """The place in the path of `x1` up to which all stay in quota."""
        return int(reach(tree.limits, tree.used, x1, np.array([asked]), parts, entitled))

    tree.charge(x2, 0, (16,))  # all of x
    assert scope(4) == tree.paths[x1].index(x)  # within x, and x may not take from y
    tree.refund(x2, 0, (16,))
    tree.charge(y1, 0, (20,))
    assert scope(8) == tree.paths[x1].index(root)
    assert tree.borrowed(y, 0) == 12
    assert scope(9) == -1  # it would have to borrow itself


def test_amounts_of_all_models_and_of_one() -> None:
    quotas = (Quota(), Quota(model="H100"), Quota("cpu"), Quota("memory", "A100"))
    tree = QuotaTree(QueueConfig((Queue("a", quotas=quotas),)))
    assert tree.keys == (("", "cpu"), ("", "gpu"), ("A100", "memory"), ("H100", "gpu"))
    assert tree.amounts_of({"H100": (2000, 30, 4), "A100": (500, 1, 2)}) == (31, 2500, 2, 2000)
    assert tree.amounts_of({}) == (0, 0, 0, 0)


def test_what_one_queue_counts_is_counted_in_every_tree() -> None:
    any_model, one = Quota(nominal=8), Quota(model="a", nominal=4)
    for quotas, fits in (((one,), False), ((one, any_model), True), ((), False)):
        tree = QuotaTree(QueueConfig((Queue("named", quotas=(any_model,)), Queue("other", quotas=quotas))))
        amounts = tree.amounts_of({"a": (2, 0, 0)})
        assert (tree.shortage_ever(1, amounts) is None) is fits, quotas
        found = tree.shortage(1, 0, amounts)
        assert (found is None) is fits and (found is None or (found.queue, found.key) == (1, ("", "gpu")))
    alone = QuotaTree(QueueConfig((Queue("named", quotas=(one,)), Queue("other", quotas=(one,)))))
    assert alone.shortage_ever(1, alone.amounts_of({"b": (100, 0, 0)})) is None  # a model that nobody names


def test_a_tenancy_without_queues_or_quotas_limits_nothing() -> None:
    assert QuotaTree(QueueConfig()).keys == ()
    tree = QuotaTree(QueueConfig((Queue("a"),)))
    assert tree.shortage(0, 0, tree.amounts_of({"H100": (1, 1, 1)})) is None
    tree.charge(0, 0, ())
    tree.check([(0, 0, ())])


def test_giving_back_what_was_never_taken_is_refused_and_changes_nothing() -> None:
    tree = two_teams(user_limit=8)
    tree.charge(1, 0, (3,))
    for user, amount in ((0, 4), (1, 1)):
        with pytest.raises(StateError, match="queue 'a' returns"):
            tree.refund(1, user, (amount,))
    tree.check([(1, 0, (3,))])
    with pytest.raises(StateError, match="sum over the jobs"):
        tree.check([(1, 0, (2,))])
    tree.used[0, 0] += 1
    with pytest.raises(StateError, match="queue 'root' uses 4"):
        tree.check()


def test_the_states_of_a_path_add_up() -> None:
    tree = QuotaTree(
        QueueConfig((Queue("a", state="drain"), Queue("b", "a", state="hold"), Queue("c", "b", state="stop")))
    )
    assert (tree.accepts, tree.starts, tree.runs) == ((False,) * 3, (True, False, False), (True, True, False))
    assert starts(()) and accepts(("hold", "stop")) and runs(("hold", "drain"))


WRONG = {
    "name twice": ((Queue("a"), Queue("a")), "t, queue 'a', name: expected a name that no other queue has, got 'a'"),
    "no name": ((Queue("a"), Queue("")), "t, queue 2, name: expected a name, got ''"),
    "no parent": ((Queue("a", "b"),), "t, queue 'a', parent: expected the name of another queue, got 'b'"),
    "cycle": (
        (Queue("a"), Queue("b", "c"), Queue("c", "b")),
        "t, queue 'b', parent: expected a queue that is not below this one, got 'c'",
    ),
    "quota twice": (
        (Queue("a", quotas=(Quota(model="T4"), Quota(model="T4"))),),
        "t, queue 'a', quota 2: expected one quota for gpu of model 'T4' in each queue",
    ),
    "nominal": (
        (Queue("a", quotas=(Quota(nominal=-1),)),),
        "t, queue 'a', quota 1, nominal: expected a whole number from 0 to less than 2^53, got -1",
    ),
    "limit": (
        (Queue("a", quotas=(Quota(user_limit=-2),)),),
        "t, queue 'a', quota 1, user_limit: expected a whole number from -1 to less than 2^53 (-1: no limit), got -2",
    ),
    "too much": (
        (Queue("a", quotas=(Quota(nominal=1 << 53),)),),
        "t, queue 'a', quota 1, nominal: expected a whole number from 0 to less than 2^53, got 9007199254740992",
    ),
    "weight": (
        (Queue("a", weight=0),),
        "t, queue 'a', weight: expected a whole number from 1 to less than 2^53, got 0",
    ),
    "state": (
        (Queue("a", state="shut"),),  # type: ignore[arg-type]
        "t, queue 'a', state: expected one of open, hold, stop, drain, got 'shut'",
    ),
    "node_wait": (
        (Queue("a", node_wait=-1),),
        "t, queue 'a', node_wait: expected microseconds from 0 to less than 2^62, got -1",
    ),
    "min_run": (
        (Queue("a", min_run=-1),),
        "t, queue 'a', min_run: expected microseconds from 0 to less than 2^62, got -1",
    ),
}


@pytest.mark.parametrize(("queues", "sentence"), WRONG.values(), ids=WRONG)
def test_a_tenancy_that_is_no_forest_is_refused(queues: tuple[Queue, ...], sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        validated(QueueConfig(queues), "t")
    assert str(refusal.value) == sentence


def test_prices_stand_once_and_are_not_negative() -> None:
    with pytest.raises(InputError, match="t, prices, T4: expected one price for each model"):
        validated(QueueConfig(prices=(("T4", 1), ("T4", 2))), "t")
    with pytest.raises(InputError, match="t, prices, T4: expected a whole number from 0"):
        validated(QueueConfig(prices=(("T4", -1),)), "t")


@given(tenancies())
def test_a_tenancy_goes_through_json_unchanged(queue_config: QueueConfig) -> None:
    assert msgspec.json.decode(msgspec.json.encode(queue_config), type=QueueConfig) == queue_config
