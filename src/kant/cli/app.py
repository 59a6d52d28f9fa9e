"""`kant`: runs the verbs, and reports invalid input in one sentence."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from kant import __version__
from kant.model.errors import InputError

if TYPE_CHECKING:
    from cyclopts import App

BAD_INPUT = 2
SIGNALLED = 128
"""A command that a signal ends has this code plus the number of the signal."""

INTERRUPTED = SIGNALLED + signal.SIGINT

HELP = Path(__file__).with_name("help.txt")
"""The text of `kant --help`: every command in its group. It is a file, so that little needs to be loaded."""


class UsageError(Exception):
    """The command line does not match any verb; the help of `verb` explains why."""

    def __init__(self, message: str, *verb: str) -> None:
        super().__init__(message)
        self.verb = verb


def main(arguments: list[str] | None = None, app: App | None = None) -> None:
    """Run one command and exit with its code: 0 done, 1 the answer is no, 2 bad input, 130 interrupted.

    SIGTERM and SIGHUP end it as an exception does, so that it leaves no temporary files and no child processes; the
    code is then 128 plus the signal's number.
    """
    ends = {signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    ours = [number for number, usual in ends.items() if signal.getsignal(number) is usual]  # not what nohup ignores
    for number in ours:
        if number != signal.SIGINT:
            signal.signal(number, _terminate)
    _open_streams()
    code = _flushed(run(sys.argv[1:] if arguments is None else arguments, app))
    for number in ours:
        signal.signal(number, signal.SIG_DFL)  # the command is done: a handler would interrupt Python's own exit
    sys.exit(code)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(SIGNALLED + number)


def run(arguments: list[str], app: App | None = None) -> int:
    """Run one command; return the exit code."""
    try:
        _check_text(arguments)
        known = None if app is not None else _known_answer(arguments)
        if known is not None:
            sys.stdout.write(known)
            return 0

        result = _call(arguments, app)
    except UsageError as error:
        name = app.name[0] if app is not None else "kant"
        return _say(f"{error} See `{' '.join([name, *error.verb])} --help`.")
    except InputError as error:
        return _say(str(error))
    except ModuleNotFoundError as error:
        from kant.cli.distributions import said

        sentence = said(error.name or "")
        if sentence is None:
            raise
        return _say(sentence)
    except BrokenPipeError:
        return 0
    except SystemExit as error:  # rich exits by 1 if the reader has closed the pipe
        return error.code if isinstance(error.code, int) and error.code > SIGNALLED else 0
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except OSError as error:
        return _say(_unusable(error))
    except MemoryError:
        return _say("expected an input that fits in memory")
    return result if isinstance(result, int) else 0


def _call(arguments: list[str], app: App | None) -> object:
    """Execute the arguments; the command line library is loaded only if they need it."""
    if app is None and arguments[:1] == ["submit"] and not {"--help", "-h"} & set(arguments):
        from kant.cli.scripts import expanded

        arguments = expanded(arguments)
    if app is None:
        from kant.cli.quick import quick

        act = quick(arguments)
        if act is not None:
            return act()

    from kant.cli.verbs import call

    return call(arguments, app)


def _known_answer(arguments: list[str]) -> str | None:
    """Return an answer that can be given without the command line library; None if the library is needed."""
    if arguments == ["--version"]:
        return f"{__version__}\n"
    if arguments not in ([], ["--help"], ["-h"], ["help"]):
        return None
    from kant.cli.distributions import first_page

    return first_page(HELP.read_text(encoding="ascii"))


def _say(sentence: str) -> int:
    """Print one line on standard error, with unprintable characters escaped."""
    line = "".join(ch if ch.isprintable() else ascii(ch)[1:-1] for ch in sentence)
    with suppress(OSError):
        print(f"kant: {line}", file=sys.stderr)
    return BAD_INPUT


def _unusable(error: OSError) -> str:
    return f"{error.filename or 'output'}: expected a file that can be read and written ({error.strerror or error})"


def _check_text(arguments: list[str]) -> None:
    """Raise InputError for arguments that are not UTF-8: journals and JSON could not store them, unlike file names."""
    for argument in arguments:
        if not argument.isascii() and any("\ud800" <= ch <= "\udfff" for ch in argument):
            raise InputError("command line", "arguments and file names in UTF-8", argument)


def _open_streams() -> None:
    """Replace a closed standard stream by /dev/null, and make output replace characters that it cannot encode."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115, PTH123
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _flushed(code: int) -> int:
    """Flush standard output, so that no error is left for the exit of the interpreter."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        code = code if code == BAD_INPUT else _say(_unusable(error))  # one error message is enough
    else:
        return code
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
