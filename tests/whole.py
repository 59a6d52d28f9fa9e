"""A plugin of pytest: a worker of pytest-xdist that dies fails the run, and no test leaves SIGINT without a handler.

Without `--max-worker-restart=0`, as pyproject.toml has it, pytest-xdist replaces a worker that dies, and may wait for
ever for the new one: that holds back its last test until it is sent another.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from pathlib import Path

import pytest

STATUS = Path("/proc/self/status")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Fail a test after which SIGINT has no handler: the next one that interrupts itself would kill this process.

    Libraries take it away behind Python, whose `signal.getsignal` goes on to name it.
    """
    result = yield
    if not has_handler(signal.SIGINT):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pytest.fail("expected a handler of SIGINT after the test, as before it", pytrace=False)
    return result


def has_handler(number: signal.Signals) -> bool:
    """Whether this process has a handler of a signal; as Python knows it where the machine does not tell."""
    if not STATUS.is_file():
        return callable(signal.getsignal(number))
    caught = next(line.split()[1] for line in STATUS.read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> number - 1 & 1)


class Deaths:
    """Those of workers. One that dies after its last test fails none of them."""

    def __init__(self) -> None:
        self.any = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        self.any |= error is not None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.any and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Deaths())
