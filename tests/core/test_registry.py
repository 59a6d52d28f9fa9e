"""Policies of other packages: found by entry point, used by name in a profile, refused in one clear sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kant.model.errors import InputError
from kant.scheduler import registry
from kant.scheduler.profile import Profile, parse_profile
from kant.sim.run import simulate
from kant.testing import check_policy, make_cluster, make_jobs

ORDER = '''
from typing import ClassVar
from kant.cluster.columns import J_MILLI
from kant.model.taxonomy import tagged
from kant.queueing.order import Order

class Largest(Order, frozen=True, tag="largest"):
    """The largest job goes first."""
    least: int = 0
    source: ClassVar[str] = "a test"
    tags = tagged(Order.tags, objective="none", knowledge="none", resources="1-d")
    def keys(self, jobs, rows, now):
        return -jobs[rows, J_MILLI].clip(min=self.least)
'''

Install = Callable[..., None]


def forget() -> None:
    for cached in (registry.policies, registry._policy, registry._offers):
        cached.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put packages on the path as an installer leaves them: a module, and the metadata with its entry points."""
    modules = set(sys.modules)

    def put(package: str, module: str, text: str, **points: str) -> None:
        (tmp_path / f"{module}.py").write_text(text)
        metadata = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name.replace('__', '.')} = {value}" for name, value in points.items()]
        (metadata / "entry_points.txt").write_text("[kant.policies]\n" + "\n".join(lines) + "\n")
        forget()

    monkeypatch.syspath_prepend(tmp_path)
    yield put
    for name in set(sys.modules) - modules:
        if not name.startswith("kant."):
            del sys.modules[name]
    monkeypatch.undo()
    forget()


def profile(order: str) -> Profile:
    rest = '[discipline]\npolicy = "best-effort"\n[placement]\npolicy = "best-fit"\n'
    return parse_profile(f"[order]\n{order}\n{rest}", "p.toml")


def test_a_policy_of_another_package_schedules_by_its_name(install: Install) -> None:
    install("their-orders", "theirs", ORDER, order__largest="theirs:Largest")
    jobs, cluster = make_jobs(submit=[0, 1, 1], runtime=[10, 10, 10], gpus=[4, 1, 4]), make_cluster(4)
    mine = profile('policy = "largest"\nleast = 2')
    assert simulate(jobs, cluster, mine).jobs.first_start.tolist() == [0, 20_000_000, 10_000_000]
    check_policy(mine.order, rounds=2)
    found = registry.policies("order")
    assert found["largest"].package == "their-orders"
    assert list(found) == sorted(found) and {policy.package for policy in found.values()} == {"kant", "their-orders"}


def test_the_same_packages_give_the_same_digest_in_whatever_order_they_are_found(install: Install) -> None:
    jobs, cluster = make_jobs(submit=[0, 1, 1], runtime=[10, 10, 10], gpus=[4, 1, 4]), make_cluster(4)
    install("b-orders", "b", ORDER, order__largest="b:Largest")
    digest = simulate(jobs, cluster, profile('policy = "largest"')).summary["digest"]
    install("a-orders", "a", ORDER.replace("largest", "biggest"), order__biggest="a:Largest")
    assert simulate(jobs, cluster, profile('policy = "largest"')).summary["digest"] == digest
    assert simulate(jobs, cluster, profile('policy = "biggest"')).jobs.first_start.tolist() == [
        0,
        20_000_000,
        10_000_000,
    ]


def test_no_package_is_imported_before_a_profile_names_its_policy(install: Install) -> None:
    install("their-orders", "theirs", ORDER, order__largest="theirs:Largest")
    profile('policy = "fifo"')
    assert "theirs" not in sys.modules
    profile('policy = "largest"')
    assert "theirs" in sys.modules


def test_an_unknown_policy_says_which_package_may_be_missing() -> None:
    with pytest.raises(InputError, match=r"the package their-orders, which offers it, to be installed, got 'largest'"):
        profile('policy = "largest"\npackage = "their-orders"')
    with pytest.raises(InputError, match=r"one of aged, .*, or a package to be installed that offers order.largest"):
        profile('policy = "largest"')
    with pytest.raises(InputError, match=r"p.toml: order.package: expected the name of a package, got 3"):
        profile('policy = "largest"\npackage = 3')


def test_a_policy_of_another_package_than_the_profile_says_is_refused(install: Install) -> None:
    install("their-orders", "theirs", ORDER, order__largest="theirs:Largest")
    with pytest.raises(
        InputError, match=r"order.package: expected their-orders, the package that offers largest, got 'x'"
    ):
        profile('policy = "largest"\npackage = "x"')
    assert profile('policy = "fifo"\npackage = "kant"') is not None


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    install("b-orders", "b", ORDER, order__largest="b:Largest")
    install("a-orders", "a", ORDER, order__largest="a:Largest")
    with pytest.raises(InputError, match=r"order largest: expected one package .* but a-orders and b-orders do"):
        profile('policy = "largest"')
    profile('policy = "fifo"')


def test_a_package_may_not_take_the_name_of_a_policy_of_kant(install: Install) -> None:
    install("their-orders", "theirs", ORDER.replace("largest", "fifo"), order__fifo="theirs:Largest")
    with pytest.raises(InputError, match=r"order fifo: expected one package .* but kant and their-orders do"):
        profile('policy = "fifo"')


@pytest.mark.parametrize(
    ("text", "value", "sentence"),
    [
        ("", "theirs:Largest", "a class that can be imported"),
        ("1 / 0", "theirs:Largest", r"ZeroDivisionError: division by zero"),
        ("Largest = 3", "theirs:Largest", "a subclass of kant.queueing.order.Order"),
        ("class Largest: pass", "theirs:Largest", "a subclass of kant.queueing.order.Order"),
        (ORDER.replace('"largest"', '"other"'), "theirs:Largest", 'a class with tag="largest"'),
        (ORDER.replace("least: int = 0", "least: int"), "theirs:Largest", "a default for each of its fields"),
    ],
    ids=lambda part: part[:20],
)
def test_a_class_that_does_not_conform_is_refused_in_one_sentence(
    install: Install, text: str, value: str, sentence: str
) -> None:
    install("their-orders", "theirs", text, order__largest=value)
    for ask in (lambda: profile('policy = "largest"'), lambda: registry.policies("order")):
        with pytest.raises(InputError, match=sentence) as error:
            ask()
        assert str(error.value).startswith("order largest of package their-orders: expected ")


@pytest.mark.parametrize("name", ["largest", "score__largest", "order__Largest"])
def test_an_entry_point_that_names_no_policy_is_refused_where_all_are_listed(install: Install, name: str) -> None:
    install("their-orders", "theirs", ORDER, **{name: "theirs:Largest"})
    profile('policy = "fifo"')
    with pytest.raises(InputError, match=r"package their-orders: expected an entry point .* named KIND.TAG"):
        registry.policies("order")


def test_a_policy_of_kant_is_found_without_looking_at_the_others() -> None:
    for kind in registry.KINDS:
        for tag, policy in registry.policies(kind).items():
            assert registry._own(kind, tag) is policy.type
