"""A session of Python for the blocks of one page: what one block defines the next ones have, as in a notebook."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType


def answer() -> None:
    """Run each block that comes on standard input, and write what it has printed."""
    names: dict[str, object] = {"__name__": "__main__"}
    for line in sys.stdin:
        out, failed = io.StringIO(), False
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                tree = ast.parse(json.loads(line))
                last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
                exec(compile(tree, "page", "exec"), names)
                if last is not None:
                    value = eval(compile(ast.Expression(last.value), "page", "eval"), names)
                    if value is not None:
                        print(repr(value))
            except BaseException:
                traceback.print_exc()
                failed = True
        print(json.dumps([out.getvalue(), failed]), flush=True)


class Session:
    """A process in a folder. `run` gives what a block prints, and the value of its last expression."""

    def __init__(self, program: Path, folder: Path, environment: Mapping[str, str]) -> None:
        """`program` is one of `tests.docs.forked` that calls `answer`."""
        self._process = subprocess.Popen(
            [program], cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def run(self, code: str) -> tuple[str, bool]:
        """What is printed, and whether an exception was raised (its traceback is printed too)."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        printed, failed = json.loads(self._process.stdout.readline())
        return printed, failed

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()
