"""The optional distributions, and the message if one is missing."""

from __future__ import annotations

from pathlib import Path

from kant.model.errors import missing_extra

HERE = Path(__file__).parent
BESIDE = {"kant-kube": ("kube",), "kant-lab": ("plan", "perf", "pack", "defrag", "share", "serve")}
"""The verbs of each distribution; each verb is defined in the file of its name."""

EXTRAS = {
    "google": "picker", "grpc": "picker", "jwt": "oidc", "mcp": "mcp", "pydantic": "mcp", "yaml": "kube",
    "zmq": "kv-events",
}  # fmt: skip
"""The extra (a set of optional dependencies) that installs each of these packages."""


def missing() -> dict[str, list[str]]:
    """Return the verbs that are not installed, by their distribution."""
    found = {name: [verb for verb in verbs if not (HERE / f"{verb}.py").exists()] for name, verbs in BESIDE.items()}
    return {name: verbs for name, verbs in found.items() if verbs}


def said(module: str) -> str | None:
    """Return the message for a missing module of Kant or of an extra; None for any other module."""
    if not module.startswith("kant."):
        extra = EXTRAS.get(module.partition(".")[0])
        return str(missing_extra(extra)) if extra is not None else None
    name = package_of(module)
    return f"this installation: expected the package {name} (pip install {name})" if name in missing() else None


def package_of(module: str) -> str:
    """Return the distribution of a module that may be missing."""
    return "kant-kube" if "kube" in module else "kant-lab"


def first_page(text: str) -> str:
    """Return the `kant --help` page of the installed verbs. Each line of `text` has only verbs of one distribution."""
    absent = missing()
    gone = {verb for verbs in absent.values() for verb in verbs}
    groups = []
    for group in text.split("\n\n"):
        lines = [line for line in group.splitlines() if not gone & _verbs(line)]
        if any(line.startswith("  ") for line in lines) or not group.splitlines()[0].isalpha():
            groups.append("\n".join(lines))
    lines = [f"Not installed: {', '.join(verbs)} (pip install {name})" for name, verbs in absent.items()]
    groups.append("\n".join(lines))
    return "\n\n".join(groups).rstrip() + "\n"


def _verbs(line: str) -> set[str]:
    """Return the verbs named in a line of `kant --help`."""
    return {word.strip(",") for word in line[2:25].split()} if line.startswith("  ") else set()
