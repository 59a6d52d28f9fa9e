"""Complaints: errors in nodes and in our own objects, by the object, as `Queue research` or `node n1`."""

from __future__ import annotations


class Complaints(dict[str, str]):
    """One sentence for each object."""

    def found(self, kind: str, wrong: dict[str, str]) -> None:
        """Replace the complaints about all objects of a kind by `wrong`, by name."""
        for name in [name for name in self if name.startswith(f"{kind} ")]:
            del self[name]
        self.update({f"{kind} {name}": sentence for name, sentence in wrong.items()})

    def drop(self, about: str, rest: str = "") -> None:
        """Drop the complaint about an object, or replace it by `rest`."""
        if rest:
            self[about] = rest
        else:
            self.pop(about, None)
