"""`kant man`: the manual pages, generated from `--help`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kant import __version__
from kant.model.errors import InputError


def man(
    *verb: Annotated[str, Parameter(help="The command, such as submit, or two words. Default: a short list of all.")],
    to: Annotated[
        Path | None, Parameter(help="Write all pages into this folder, such as ~/.local/share/man/man1.")
    ] = None,
) -> int:
    """Show the manual page of Kant or of a verb, or write all of them for man(1)."""
    from kant.cli.verbs import VERBS

    found = pages(*verb[:1]) if verb and verb[0] in VERBS else pages()
    if to is not None:
        if verb:
            raise InputError("VERB", "no command with --to: all pages are written", " ".join(verb))
        folder = to.expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            (folder / name).write_text(text, encoding="utf-8")
        print(f"{len(found)} pages are in {folder}")
        return 0
    name = "-".join(["kant", *verb]) + ".1"
    if name not in found:
        raise InputError("VERB", "a verb of `kant --help`", " ".join(verb))
    _show(found[name])
    return 0


def _show(page: str) -> None:
    """Show a page with man(1) if it is installed and standard output is a terminal; otherwise print it."""
    program = shutil.which("man") if sys.stdout.isatty() else None
    if program is None or subprocess.run([program, "-l", "-"], input=page.encode(), check=False).returncode:
        print(page, end="")


def pages(*verbs: str) -> dict[str, str]:
    """Return the pages of `kant` and of its verbs (the given ones, or all) by file name, in roff(7) with man(7)."""
    from kant.cli.verbs import app_of, installed

    app = app_of(*(verbs or installed()))
    found: dict[str, str] = {}
    _add(app, ("kant",), found)
    return dict(sorted(found.items()))


def _add(app: App, words: tuple[str, ...], found: dict[str, str]) -> None:
    verbs = [name for name in app if not name.startswith("-")]
    about = [" ".join(part.split()) for part in (app.help or "").strip().split("\n\n")]
    name = "-".join(words)
    lines = [f'.TH {name.upper()} 1 "" "kant {__version__}" "Kant"', ".SH NAME"]
    lines.append(_plain(f"{name} - {about[0]}"))
    lines += [".SH SYNOPSIS", f".B {_plain(' '.join(words))}"]
    if verbs:
        lines.append("COMMAND")
    else:
        takes = [each for each in app.assemble_argument_collection(parse_docstring=True) if each.show]
        lines += [_plain(_placeholder(each)) for each in takes if _is_positional(each)]
        lines.append("[OPTIONS]")
    for part in about[1:]:
        lines += [".SH DESCRIPTION" if part == about[1] else ".PP", _plain(part)]
    if verbs:
        lines.append(".SH COMMANDS")
        for verb in sorted(verbs):
            first = " ".join((app[verb].help or "").strip().split("\n\n")[0].split())
            lines += [".TP", f".BR {_plain(f'{name}-{verb}')} (1)", _plain(first)]
            _add(app[verb], (*words, verb), found)
    else:
        lines.append(".SH OPTIONS")
        for each in takes:
            names = ", ".join(each.names)
            lines += [".TP", f".B {_plain(names)}", _plain(each.parameter.help or "")]
    lines += [".SH SEE ALSO", _plain("kant --help, and the documentation that comes with Kant")]
    found[f"{name}.1"] = "\n".join(lines) + "\n"


def _is_positional(argument: object) -> bool:
    return not any(name.startswith("-") for name in argument.names)  # type: ignore[attr-defined]


def _placeholder(argument: object) -> str:
    (name, *_) = argument.names  # type: ignore[attr-defined]
    return str(name) if argument.required else f"[{name}]"  # type: ignore[attr-defined]


def _plain(text: str) -> str:
    """Escape a text for roff."""
    text = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
