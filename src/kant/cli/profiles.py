"""`kant profiles`: lists the built-in profiles, prints and pins a profile, and compiles its Numba functions."""

from __future__ import annotations

import os
import re
import sys
from json import dumps as json_text
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kant.cli.inputs import Json, load_profile
from kant.cli.output import Reply
from kant.cli.show import print_table
from kant.files import write_bytes
from kant.model.errors import InputError
from kant.toml_file import read_text

profiles_app = App(name="profiles", help="List the built-in profiles, or show one.", help_format="plaintext")


@profiles_app.default
def list_profiles(*, json: Json = False) -> int:
    """List the built-in profiles."""
    from kant.scheduler.profile import builtin_abouts

    abouts = builtin_abouts()
    columns = ("profile", "what it is")
    return Reply(abouts, lambda: print_table(columns, list(abouts.items()), left=columns, frame=False)).print(json)


@profiles_app.command
def show(name: Annotated[str, Parameter(help="A built-in profile, or a TOML file.")], /) -> None:
    """Print a profile as TOML, to be edited and used with --profile."""
    sys.stdout.write(load_profile(name).text)


@profiles_app.command
def pin(
    file: Annotated[Path, Parameter(help="The TOML file of a profile with a router.")],
    policy: Annotated[str, Parameter(help="The policy to use; auto: the policy that the rules choose.")],
    /,
) -> None:
    """Pin a policy of a router by hand, or let its rules choose again. A Kant that follows the file does so at once."""
    from kant.scheduler.profile import parse_profile

    text = read_text(file)
    if parse_profile(text, str(file)).router is None:
        raise InputError(str(file), "a profile with a table [router]")
    pinned = "" if policy == "auto" else f"\npin = {json_text(policy)}"
    text = re.sub(r"(?m)^pin *=.*\n", "", text)
    text = re.sub(r"(?m)^\[router\][^\n]*", lambda found: found[0] + pinned, text)
    parse_profile(text, str(file))  # reject an invalid profile before anything is written
    write_bytes(file, text.encode())


@profiles_app.command(name="compile")
def compile_kernels(
    *names: Annotated[str, Parameter(help="Built-in profiles, or TOML files. Default: kant.")], json: Json = False
) -> int:
    """Compile the missing kernels of profiles in advance, so that no run has to."""
    from kant.compiled import work
    from kant.compiled.folders import folders
    from kant.live.warm import warm
    from kant.sim.warm import warm_up

    for profile in [load_profile(name) for name in names or ("kant",)]:
        warm_up(profile)
        warm(profile, ahead=True)
    folder = next((str(folder) for folder in folders() if os.access(folder, os.W_OK)), None)
    found = {"compiled": work.compiled, "found": work.found, "cpu_s": work.cpu_s, "folder": folder}
    kept = f"kept in {folder}" if folder else "kept nowhere: no folder can be written"
    said = f"{work.compiled} kernels compiled, {work.found} found, in {work.cpu_s:.1f} CPU-seconds; {kept}"
    return Reply(found, lambda: print(said)).print(json)
