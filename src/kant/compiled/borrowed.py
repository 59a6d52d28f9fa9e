"""Numba's lowering (its IR to LLVM code), without reference counts for values that a function only borrows.

By default Numba counts a reference for each variable that holds an array, including arguments and values read from
them: one atomic increment and decrement for each array of each tuple, at each call. A caller keeps its arguments until
the call ends, so a variable that is assigned once, to an argument or a part of one, needs no count of its own. A value
that is passed on, as a result, in a tuple or in a variable assigned twice, is counted as before.
Such a variable of the first block has no slot on the stack either: each read would copy a whole tuple.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import ir, types
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering


class BorrowingLower(Lower):  # type: ignore[misc]
    """Numba's lowering, without counts for variables that borrow."""

    def init(self) -> None:
        self._borrowing, self._kept = set[str](), set[str]()
        assigns = {label: list(block.find_insts(ir.Assign)) for label, block in self.blocks.items()}
        times = Counter(inst.target.name for own in assigns.values() for inst in own)
        once = [inst for own in assigns.values() for inst in own if times[inst.target.name] == 1]
        self._follow(once)
        loops = compute_cfg_from_blocks(self.blocks).loops().values()
        repeated = set().union(*(loop.body for loop in loops))
        parts = {inst.value.value.name for inst in once if _is_part(inst.value)}
        for label in assigns.keys() - repeated:
            for name in parts & {inst.target.name for inst in assigns[label]}:
                if times[name] == 1 and name not in self._borrowing:
                    self._keep(name, label)
        self._follow(once)
        first = assigns[min(assigns)] if min(assigns) not in repeated else []
        self._fixed = {inst.target.name for inst in first if times[inst.target.name] == 1} & self._borrowing
        self._values = dict[str, Any]()
        super().init()

    def _follow(self, once: list[Any]) -> None:
        """Find which variables borrow, among those that are assigned once."""
        known = -1
        while known < len(self._borrowing):
            known = len(self._borrowing)
            self._borrowing.update(inst.target.name for inst in once if self._borrows(inst.value))

    def _keep(self, name: str, label: int) -> None:
        """Keep the value of a variable until the function returns, so that other variables may borrow from it."""
        dels = [(each, inst) for each, block in self.blocks.items() for inst in block.find_insts(ir.Del)]
        own = [(each, inst) for each, inst in dels if inst.value == name]
        if not any(each != label for each, _ in own):
            return  # it is used in one block, where LLVM removes counts that cancel
        self._kept.add(name)
        for each, inst in own:
            self.blocks[each].body.remove(inst)
        for block in self.blocks.values():
            if isinstance(block.terminator, ir.Return):
                block.body.insert(-1, ir.Del(name, block.terminator.loc))

    def _borrows(self, value: Any) -> bool:
        """Return whether `value` is an argument, a part of a tuple or array that outlives it, or a tuple of such
        values.
        """
        if isinstance(value, ir.Arg):
            return True
        if isinstance(value, ir.Var):
            return self._lasts(value)
        if isinstance(value, ir.Expr) and value.op == "build_tuple":
            return all(map(self._lasts, value.items))
        if isinstance(value, ir.Expr) and value.op == "call" and not (value.kws or value.vararg):
            makes_tuple = isinstance(self.typeof(value.func.name), types.NamedTupleClass)
            return makes_tuple and all(map(self._lasts, value.args))
        if not _is_part(value) or not self._lasts(value.value):
            return False
        whole = self.typeof(value.value.name)
        if not isinstance(whole, types.Array):
            return isinstance(whole, types.BaseTuple)
        index = self.typeof(value.index.name) if value.op == "getitem" else types.intp
        parts = index if isinstance(index, types.BaseTuple) else (index,)
        shares = all(isinstance(part, types.Integer | types.SliceType) for part in parts)  # other indices copy
        return shares and value.op != "getattr"

    def _lasts(self, var: Any) -> bool:
        """Return whether the value of a variable exists until the function returns, or needs no count."""
        plain = types.Number | types.Boolean | types.NoneType
        return var.name in self._borrowing | self._kept or isinstance(self.typeof(var.name), plain)

    def lower_assign(self, ty: Any, inst: Any) -> Any:
        with self._uncounted(inst.target.name):
            return super().lower_assign(ty, inst)

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        if name in self._fixed:
            self._values[name] = value
            return
        with self._uncounted(name):
            super().storevar(value, name, argidx)

    def loadvar(self, name: str) -> Any:
        return self._values[name] if name in self._values else super().loadvar(name)

    def delvar(self, name: str) -> None:
        if name in self._values:
            return
        with self._uncounted(name):
            super().delvar(name)

    @contextmanager
    def _uncounted(self, name: str) -> Iterator[None]:
        """Emit no counts if `name` borrows."""
        counts = vars(self.context.nrt)
        if name not in self._borrowing:
            yield
            return
        counts |= {"incref": _nothing, "decref": _nothing}
        try:
            yield
        finally:
            del counts["incref"], counts["decref"]


MACHINE_CODE = "borrows from what is kept, without slots"
"""A name of this lowering, for the cache: another lowering makes other code from the same kernel."""

_PARTS = ("getattr", "static_getitem", "getitem", "exhaust_iter")
"""Operations that read a part of a tuple or of an array, and allocate nothing."""


def _is_part(value: Any) -> bool:
    return isinstance(value, ir.Expr) and value.op in _PARTS


def _nothing(builder: Any, kind: Any, value: Any) -> None:
    pass


@register_pass(mutates_CFG=True, analysis_only=False)
class BorrowingLowering(NativeLowering):  # type: ignore[misc]
    """Numba's pass that lowers a function to LLVM code, by `BorrowingLower`."""

    _name = "borrowing_lowering"

    @property
    def lowering_class(self) -> type[Lower]:
        return BorrowingLower
