"""Complaints: errors in nodes and in objects of Kant's kinds. The key names the object: `Queue research`, `node n1`."""

from __future__ import annotations


class Complaints(dict[str, str]):
    """The error of each object with an error, as one sentence."""

    def found(self, kind: str, wrong: dict[str, str]) -> None:
        """Replace the complaints about all objects of a kind. `wrong` has a sentence for each name of an object."""
        for name in [name for name in self if name.startswith(f"{kind} ")]:
            del self[name]
        self.update({f"{kind} {name}": sentence for name, sentence in wrong.items()})

    def drop(self, about: str, rest: str = "") -> None:
        """Drop the complaint about an object, or replace it by `rest`."""
        if rest:
            self[about] = rest
        else:
            self.pop(about, None)
