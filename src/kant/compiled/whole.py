"""How a kernel takes a named tuple: whole, as one argument.

By default Numba takes it apart into its numbers and pointers at each call, and puts it together again in the function
that is called. A tuple of all tables of a simulation has five hundred of them, and each function that takes it cost a
fifth of a CPU-second of compilation.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.datamodel.models import TupleModel
from numba.extending import register_model


@register_model(types.NamedTuple)
class WholeTupleModel(TupleModel):  # type: ignore[misc]
    """Numba's layout of a named tuple, which is an argument as it is a value."""

    def get_argument_type(self) -> Any:
        return self.get_value_type()

    def as_argument(self, builder: Any, value: Any) -> Any:
        return value

    def from_argument(self, builder: Any, value: Any) -> Any:
        return value


MACHINE_CODE = "whole named tuples"
"""A name of what this layout makes, for the cache: another one makes other code of the same kernel."""
