"""What every test may use: the folder of real traces, Hypothesis profiles, and marks for what a test needs.

`cluster`: a real control plane. `browser`: a browser. `service`: processes of Kant that serve. These marks are set
here, by what a test asks for. pytest-xdist gives all tests of the browser to one worker and those of the shared control
plane to PLANES workers, so that no more of them are started.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from tests import installed
from tests.cost import Cost
from tests.examples import examples
from tests.rewritten import rewrite_new

pytest_plugins = ["tests.whole"]

installed.hide()

# Tests fork daemons, which fork jobs. Where a test of the picker has imported gRPC, its fork handlers crash these.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# What is printed does not depend on the terminal of whoever runs the tests.
for variable in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(variable, None)

CI = os.environ.get("CI") == "true"

ROOT = Path(__file__).parent.parent
START = str(ROOT / "tests" / "start")
if START not in (paths := os.environ.get("PYTHONPATH", "").split(os.pathsep)):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [START, *paths]))
DATA = Path(os.environ.get("KANT_DATA", ROOT.parent / "shared" / "data"))

# How long an example takes says nothing: the first ones compile, and machines are shared.
settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(25)
)
settings.register_profile("ci", settings.get_profile("default"), max_examples=examples(30), derandomize=True)
settings.load_profile("ci" if CI else "default")
# Else each worker parses all modules of Kant for constants, in four seconds, and what an example draws depends on which
# modules were loaded before it.
providers._get_local_constants = lambda: providers._local_constants

NEEDS = ("cluster", "browser", "service")
"""What tests wait for other processes for. In CI such a test that fails is tried once more, and its first failure is
shown: a busy machine is not a fault of Kant. `make test` allows for few of these (`--max-suite-reruns`)."""
WAITING_PART = 0.5
"""Of all tests that compute, those among which the tests that wait are spread; no worker waits alone in the end."""
PLANES = 3
"""How many workers start a control plane for the tests that share one. These wait for about five minutes in all: with
fewer planes they would end after all others."""

DataFile = Callable[[str], Path]


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    """The loop of a test that is a coroutine, for fixtures that have something open in it."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in the loop of its fixtures, or in one of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    runner: asyncio.Runner | None = pyfuncitem.funcargs.get("loop")
    (runner.run if runner else asyncio.run)(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="session")
def data_file() -> DataFile:
    """Gives the path of a real trace by name. Where it is absent the test is skipped, or fails if CI=true."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.is_file():
            sentence = f"no {name} in {DATA} (set KANT_DATA to the folder of real traces)"
            if CI:
                pytest.fail(sentence, pytrace=False)
            pytest.skip(sentence)
        return path

    return find


@pytest.fixture(scope="module")
def browser() -> Any:
    """The browser of this process, in which `tests.browser.opened` and `lent` have pages."""
    from tests.browser import kept

    return kept()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cost", action="store_true", help="show the CPU seconds of folders, files and tests")
    parser.addoption("--cost-in-brief", action="store_true", help="show in three lines where most of them went")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells have it for what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("cost") or config.getoption("cost_in_brief"):
        config.pluginmanager.register(Cost(brief=not config.getoption("cost")))
    gc.disable()
    for line in (
        "cluster: talks to a real kube-apiserver",
        "browser: drives a browser",
        "service: starts processes of Kant that serve",
        "plane: has a control plane of its own, with these feature gates and flags",
        "long: takes seconds, and is not among those of make test-fast",
    ):
        config.addinivalue_line("markers", line)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before workers start for all tests: each of them would rewrite all their modules, where these are new."""
    if everything(session.config) and not sys.dont_write_bytecode:
        rewrite_new(session.config, modules())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    if everything(config):
        from tests.workers import fork_workers

        fork_workers(config, specs, modules())


def everything(config: pytest.Config) -> bool:
    """Whether workers run all tests, not those of some files."""
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and bool(config.getoption("numprocesses", None))


def modules() -> list[Path]:
    return sorted(Path(__file__).parent.rglob("test_*.py"))


def pytest_sessionfinish() -> None:
    if "tests.browser" in sys.modules:
        sys.modules["tests.browser"].let_go()
    if "tests.local.up" in sys.modules:
        up = sys.modules["tests.local.up"]
        up.end_jobs(up.homes)


def pytest_collection_finish() -> None:
    """What is here before the first test stays: no collection of garbage looks through all of it again, and few of them
    look through what tests make, which is gone with the test."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what each test needs, and put those that share something into one group, before pytest-xdist reads it."""
    sharing = dict.fromkeys(item.path for item in items if _shares_plane(item))
    planes = {path: f"cluster-{number % PLANES}" for number, path in enumerate(sharing)}
    for item in items:
        needs = _needs(item)
        for need in needs:
            item.add_marker(need)
        if needs and CI:
            item.add_marker(pytest.mark.flaky(reruns=1))
        group = planes[item.path] if _shares_plane(item) else _group(item, needs)
        if group and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(group))
    begins = _begins(items)
    items.sort(key=lambda item: begins[_unit(item)])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """The logger `kant`, which daemons and leaders set up for their whole process, does not outlive a test.

    Nor does the zero of the clock that a verb run in this process has set.
    What is forked for all tests is forked before one changes anything for itself. The browser is for tests of pages
    alone, which follow each other.
    """
    pages = sys.modules.get("tests.browser")
    if pages is not None and not (item.get_closest_marker("browser") and not item.get_closest_marker("cluster")):
        pages.let_go()
    side = sys.modules.get("tests.side_processes")
    if side is not None and any(map(item.get_closest_marker, ("cluster", "service"))):
        side.server()
    units = sys.modules.get("kant.model.units")
    if units is not None:
        units.count_from(0)
    logger = logging.getLogger("kant")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    result = yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate
    return result


def _needs(item: pytest.Item) -> list[str]:
    """Which of NEEDS a test has: a fixture that it asks for, what its module imports, or its own mark says so."""
    asks = getattr(item, "fixturenames", ())
    module = item.getparent(pytest.Module)
    things = vars(module.obj).values() if module is not None else ()
    imported = {str(getattr(thing, "__module__", "")) for thing in things}
    needs = (
        "binaries" in asks,
        "browser" in asks or bool({"playwright.sync_api", "tests.browser"} & imported),
        "tests.local.up" in imported or item.get_closest_marker("service") is not None,
    )
    return [need for need, is_so in zip(NEEDS, needs, strict=True) if is_so]


def _fixtures(item: pytest.Item) -> dict[str, Sequence[pytest.FixtureDef[Any]]]:
    info = getattr(item, "_fixtureinfo", None)
    return {} if info is None else info.name2fixturedefs


def _shares_plane(item: pytest.Item) -> bool:
    return "plane" in _fixtures(item) and item.get_closest_marker("plane") is None


def _group(item: pytest.Item, needs: list[str]) -> str:
    """Whom it shares a worker with, so that what they share is made once: a browser, a fixture."""
    if "browser" in needs and "cluster" not in needs:
        return "browser"
    shares = any(definitions[-1].scope == "module" for definitions in _fixtures(item).values())
    return f"{item.path.parent.name}/{item.path.stem}" if needs or shares else ""


def _unit(item: pytest.Item) -> str:
    """What pytest-xdist gives to a worker as one."""
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0]) if mark else item.nodeid


def _begins(items: Sequence[pytest.Item]) -> dict[str, tuple[float, int]]:
    """When each unit begins. A core is never idle where tests that wait run beside tests that compute: what shares a
    control plane or the browser begins, and other tests that wait are spread over the first part of all that compute.
    """
    first, waiting, computing = (dict[str, bool]() for _ in range(3))
    for item in sorted(items, key=lambda item: item.get_closest_marker("long") is None):
        shares = _shares_plane(item) or item.get_closest_marker("browser")
        waits = any(map(item.get_closest_marker, NEEDS))
        (first if shares else waiting if waits else computing)[_unit(item)] = True
    kinds = ((first, 0.0), (waiting, WAITING_PART), (computing, 1.0))
    found: dict[str, tuple[float, int]] = {}
    for units, part in kinds:
        for number, unit in enumerate(units):
            found.setdefault(unit, (part * number / len(units), len(found)))
    return found
