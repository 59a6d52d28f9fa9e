"""`kant completion`: what a shell needs to complete the verbs and options of Kant."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell that you use.")], /) -> int:
    """Print a script that completes `kant` in a shell.

    bash: eval "$(kant completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc, after compinit.
    fish: kant completion fish > ~/.config/fish/completions/kant.fish"""
    from kant.cli.verbs import VERBS, app_of

    print(app_of(*VERBS).generate_completion(prog_name="kant", shell=shell))
    return 0
