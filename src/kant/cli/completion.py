"""`kant completion`: scripts that complete Kant's verbs and options in a shell."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

Shell = Literal["bash", "zsh", "fish"]

LOADED = """
if [[ $funcstack[1] == _cyclopts_kant ]]; then
  _cyclopts_kant "$@"
elif (( $+functions[compdef] )); then
  compdef _cyclopts_kant kant
fi
"""
"""Ends the zsh script: zsh runs a file in `fpath` as the function's body, but `eval` must register the function."""


def completion(shell: Annotated[Shell, Parameter(help="The shell that you use.")], /) -> int:
    """Print a script that completes `kant` in a shell.

    bash: eval "$(kant completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc, after compinit.
    fish: kant completion fish > ~/.config/fish/completions/kant.fish"""
    print(script(shell))
    return 0


def script(shell: Shell) -> str:
    """Return the completion script of a shell."""
    from kant.cli.verbs import app_of, installed

    made = app_of(*installed()).generate_completion(prog_name="kant", shell=shell)
    return made + LOADED if shell == "zsh" else made


def files() -> dict[str, str]:
    """Return the scripts by their paths below `share`, where shells look for them."""
    return {
        "bash-completion/completions/kant": script("bash"),
        "zsh/site-functions/_cyclopts_kant": script("zsh"),
        "fish/vendor_completions.d/kant.fish": script("fish"),
    }
