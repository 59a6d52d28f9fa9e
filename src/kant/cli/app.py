"""`kant`: the verbs, and what happens when something a person gave us is wrong."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper

from cyclopts import App, CycloptsError

from kant import __version__
from kant.cli.check import check
from kant.cli.cluster import cluster_app
from kant.cli.compare import compare
from kant.cli.demo import demo
from kant.cli.eta import eta
from kant.cli.explain import explain
from kant.cli.jobs import cancel, hold, jobs, logs, queue, release, top
from kant.cli.kube import kube_app
from kant.cli.page import audit, page
from kant.cli.policies import policies
from kant.cli.profiles import profiles_app
from kant.cli.replay import replay
from kant.cli.report import report
from kant.cli.simulate import simulate
from kant.cli.submit import submit
from kant.cli.token import token_app
from kant.cli.trace import trace_app
from kant.cli.up import down, up
from kant.cli.whatif import whatif
from kant.cli.why import why
from kant.model.errors import InputError

BAD_INPUT = 2
INTERRUPTED = 130

app = App(
    name="kant",
    help="Kant: one scheduling core for AI clusters.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # ours to report
)
HERE = (up, down, submit, jobs, logs, cancel, hold, release, queue, top, page, audit)
for verb in (*HERE, simulate, compare, replay, why, eta, whatif, explain, report, check, policies, demo):
    app.command(verb)
for group in (trace_app, cluster_app, profiles_app, kube_app, token_app):
    app.command(group)


def main(arguments: list[str] | None = None, app: App = app) -> None:
    """Run one command and exit: 0 done, 1 an answer of no, 2 bad input, 130 interrupted."""
    _open_streams()
    code = run(sys.argv[1:] if arguments is None else arguments, app)
    sys.exit(_flushed(code))


def run(arguments: list[str], app: App = app) -> int:
    """Run one command; returns the exit code."""
    try:
        _check_text(arguments)
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _say(" ".join(str(error).split()) + " See `kant --help`.")
    except InputError as error:
        return _say(str(error))
    except (BrokenPipeError, SystemExit):  # whoever read our output has gone; rich leaves a broken pipe by SystemExit
        return 0
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except OSError as error:
        return _say(_unusable(error))
    except MemoryError:
        return _say("expected an input that fits in memory")
    return result if isinstance(result, int) else 0


def _say(sentence: str) -> int:
    """One line on standard error, whatever the sentence quotes."""
    line = "".join(ch if ch.isprintable() else ascii(ch)[1:-1] for ch in sentence)
    with suppress(OSError):
        print(f"kant: {line}", file=sys.stderr)
    return BAD_INPUT


def _unusable(error: OSError) -> str:
    return f"{error.filename or 'output'}: expected a place that can be read and written ({error.strerror or error})"


def _check_text(arguments: list[str]) -> None:
    """Names go into journals and JSON, which are UTF-8; the operating system also has names that are not."""
    for argument in arguments:
        if not argument.isascii() and any("\ud800" <= ch <= "\udfff" for ch in argument):
            raise InputError("command line", "arguments and file names in UTF-8", argument)


def _open_streams() -> None:
    """A closed standard stream leads nowhere; what its encoding cannot say is replaced."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115, PTH123
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _flushed(code: int) -> int:
    """Bring out what is still buffered, so that the interpreter has nothing left to fail on."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        code = _say(_unusable(error))
    else:
        return code
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
