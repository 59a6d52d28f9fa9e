"""`kant`: the verbs, and what happens when something a person gave us is wrong."""

from __future__ import annotations

import sys

from cyclopts import App, CycloptsError

from kant import __version__
from kant.cli.check import check
from kant.cli.cluster import cluster_app
from kant.cli.compare import compare
from kant.cli.demo import demo
from kant.cli.policies import policies
from kant.cli.profiles import profiles_app
from kant.cli.replay import replay
from kant.cli.simulate import simulate
from kant.cli.trace import trace_app
from kant.model.errors import InputError

BAD_INPUT = 2
INTERRUPTED = 130

app = App(
    name="kant",
    help="Kant: one scheduling core for AI clusters.",
    version=__version__,
    help_format="plaintext",
)
for verb in (simulate, compare, replay, check, policies, demo):
    app.command(verb)
for group in (trace_app, cluster_app, profiles_app):
    app.command(group)


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 an answer of no, 2 bad input, 130 interrupted."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one command; returns the exit code."""
    try:
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _say(" ".join(str(error).split()) + " See `kant --help`.")
    except InputError as error:
        return _say(str(error))
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has gone
        return 0
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except OSError as error:
        return _say(f"{error.filename or 'file'}: {error.strerror or error}")
    except MemoryError:
        return _say("expected an input that fits in memory")
    return result if isinstance(result, int) else 0


def _say(sentence: str) -> int:
    print(f"kant: {sentence}", file=sys.stderr)
    return BAD_INPUT
