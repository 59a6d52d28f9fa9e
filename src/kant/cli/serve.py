"""`kant serve`: what happens inside inference engines, request by request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kant.cli.inputs import Json
from kant.cli.output import print_json

serve_app = App(name="serve", help="Simulate inference engines, request by request.", help_format="plaintext")


@serve_app.command
def verify(
    file: Annotated[Path, Parameter(help="Recorded runs of vLLM's scheduler: JSON, plain or gzip.")],
    /,
    *,
    json: Json = False,
) -> int:
    """Run recorded runs of vLLM's own scheduler through the engine and count what agrees to the bit."""
    from kant.cli.show import console
    from kant.serving.recording import read_recording, verify

    found = verify(read_recording(file))
    if json:
        print_json(found.json())
    else:
        console.print(f"{found.cells_exact:,} of {found.cells:,} runs exact; {found.steps:,} engine steps")
        console.print(f"{found.exact:,} of {found.requests:,} requests exact; {found.preemptions:,} preemptions")
        if (odd := found.first_difference) is not None:
            console.print(
                f"first difference: cell {odd.cell}, request {odd.request}: {odd.field} is {odd.ours!r},"
                f" recorded {odd.recorded!r}",
                style="yellow",
            )
    return 0 if found.exact == found.requests else 1
