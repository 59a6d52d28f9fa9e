"""`kant profiles`: the built-in profiles, and the TOML of each."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from kant.cli.inputs import Json, load_profile
from kant.cli.output import print_json

profiles_app = App(name="profiles", help="List the built-in profiles, or show one.", help_format="plaintext")


@profiles_app.default
def list_profiles(*, json: Json = False) -> None:
    """List the built-in profiles."""
    from rich.table import Table

    from kant.cli.show import console
    from kant.scheduler.profile import builtin_profile, builtin_texts

    names = list(builtin_texts())
    if json:
        print_json({name: builtin_profile(name).about for name in names})
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("profile")
    table.add_column("what it is")
    for name in names:
        table.add_row(name, builtin_profile(name).about)
    console.print(table)


@profiles_app.command
def show(name: Annotated[str, Parameter(help="A built-in profile, or a TOML file.")], /) -> None:
    """Print a profile as TOML, to be edited and passed back with --profile."""
    import sys

    sys.stdout.write(load_profile(name).text)
