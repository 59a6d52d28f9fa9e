"""Objects that a Jupyter notebook shows as tables, and a terminal as text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from msgspec import Struct

MOST_ROWS = 200
WIDE = 120
"""Maximum number of characters of a value in a table."""


class Shown(Struct, frozen=True):
    """An API object that shows itself as a table in a notebook."""

    def _repr_html_(self) -> str:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return fields_html(type(self).__name__, fields)


def cell(value: Any) -> str:
    """Return a value as the text of a cell: escaped and shortened."""
    if value is None or value == "" or value == [] or value == {}:
        return ""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return escape(text if len(text) <= WIDE else text[: WIDE - 1] + "…")


def table_html(rows: Sequence[Struct]) -> str:
    """Return the table of objects of one type, one row each, without empty columns."""
    if not rows:
        return "<p>none</p>"
    names = [name for name in rows[0].__struct_fields__ if any(cell(getattr(row, name)) for row in rows)]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = [
        "<tr>" + "".join(f"<td>{cell(getattr(row, name))}</td>" for name in names) + "</tr>" for row in rows[:MOST_ROWS]
    ]
    more = f"<p>and {len(rows) - MOST_ROWS:,} more</p>" if len(rows) > MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>{more}"


def fields_html(title: str, fields: dict[str, Any]) -> str:
    """Return the table of one object's fields; lists of objects become tables of their own."""
    plain, tables = [], []
    for name, value in fields.items():
        if isinstance(value, list | tuple) and value and isinstance(value[0], Struct):
            tables.append(f"<h4>{escape(name)}</h4>{table_html(value)}")
        elif isinstance(value, Struct):
            inner = {each: getattr(value, each) for each in value.__struct_fields__}
            tables.append(fields_html(name, inner))
        elif cell(value):
            plain.append(f"<tr><th>{escape(name)}</th><td>{cell(value)}</td></tr>")
    return f"<h4>{escape(title)}</h4><table><tbody>{''.join(plain)}</tbody></table>{''.join(tables)}"
