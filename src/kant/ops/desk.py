"""The desk: plan, apply, undo and submit, with all the rules for them. Assistants and people use it in the same way.

Nothing destructive is done without a plan. A plan is bound to the version of the state for which it was made; any
change of that state makes the plan void. All rules are checked again when the plan is applied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from kant.model.errors import InputError, SentenceError
from kant.model.units import DAY, HOUR, MINUTE
from kant.ops import orders as o
from kant.ops.audit import Audit, AuditBusyError, OpsEntry
from kant.ops.orders import Order, kind_of, parse_orders, sentence, to_json
from kant.ops.rules import FINAL, Blast, RoleLimit, RoleLimits, Violation, blast_of, foreseen, job_of, violations
from kant.ops.simulated import SimulatedWorld
from kant.ops.text import bounded, cleaned, encoded_ids, meant, one_line, safe_id
from kant.ops.view import WorldView, changed, some
from kant.ops.world import Done, OrderFutures, World
from kant.service.roles import Caller, Role

UNDO_WITHIN = 15 * MINUTE
MOST_STEP = 366 * DAY
OPEN = ("apply", "done")
"""The kinds of the last entry of a transaction that is in progress."""
NAMED = 10
"""Maximum number of jobs that the effects of a plan name one by one."""


class RefusalError(SentenceError):
    """A rule forbids the request: `code` is one word for the rule."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def refused(error: Exception) -> dict[str, Any]:
    """Return a refusal as an answer: one word for the rule (`input` for an invalid request), and a sentence."""
    code = error.code if isinstance(error, RefusalError) else "input"
    return {"refused": code, "sentence": one_line(str(error))}


class Desk:
    """Serves one caller on one world. Desks that share an audit share plans, transactions and budgets.

    `via` names the caller's channel, for the audit.
    """

    def __init__(
        self,
        world: World,
        who: Caller,
        audit: Audit | None = None,
        limits: RoleLimits | None = None,
        via: str = "process",
    ) -> None:
        self.world = world
        self.who = who
        self.audit = audit or Audit()
        self.limits = limits or RoleLimits()
        self.via = via
        self._facts: dict[str, dict[str, str]] = {}  # for plans of this process, so that a refusal can say what changed
        with self.alone():
            pass

    @property
    def limit(self) -> RoleLimit:
        return self.limits.of(self.who.role)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Exclude other writers during the block; first read their entries and close abandoned transactions."""
        with self.audit.locked():
            news = self.audit.news()
            if isinstance(self.world, SimulatedWorld) and self.world.carries:
                replay(self.world, news)
            for txn, entries in self.audit.txns.items():
                if entries[-1].what in OPEN and self.audit.is_cut_off(entries[-1], self.world.now()):
                    self.world.settle()
                    self._write("interrupted", txn=txn, sentence=_how_far(entries))
            yield

    def _write(self, what: Any, **fields: Any) -> OpsEntry:
        own = {"who": self.who.user, "role": str(self.who.role), "via": self.via}
        return self.audit.write(what, self.world.now(), **(own | fields))

    @contextmanager
    def _refusals_noted(self, **fields: Any) -> Iterator[None]:
        """Record refusals in the audit as well."""
        try:
            yield
        except InputError as error:
            found = refused(error)
            self._write("refused", code=found["refused"], sentence=found["sentence"], **fields)
            raise

    # --- plan -----------------------------------------------------------------------------------------------------

    def plan(self, orders: Any) -> dict[str, Any]:
        """Return the effects of these orders; nothing is done. Raises InputError for invalid orders."""
        found = tuple(_with_meant_ids(order) for order in parse_orders(orders))
        with self.alone():
            view = self.world.view()
            broken, blast, futures = self._judged(view, found)
            version = view.version
            seq = self.audit.next_seq
            text = msgspec.json.encode([seq, version, self.who.user, to_json(found)])
            name = f"p{seq}-{hashlib.blake2b(text, digest_size=4).hexdigest()}"
            self._facts[name] = view.facts()
            answer = {
                "orders": [sentence(order) for order in found],
                "can_be_applied": not broken,
                "violations": msgspec.to_builtins(broken),
                "effects": _effects(futures),
                "blast_radius": msgspec.to_builtins(blast),
                "gpu_hours_lost": blast.gpu_hours_lost,
                "asks_a_person": blast.beyond(self.limit),
                "cannot_be_undone": sorted({f"{kind}: {FINAL[kind]}" for kind in map(kind_of, found) if kind in FINAL}),
            }
            shown = bounded(cleaned(answer, encoded_ids(view.jobs)))
            lost = blast.gpu_hours_lost * 3600
            self._write("plan", plan=name, orders=found, version=version, lost_gpu_s=lost, shown=shown)
        return {"plan_id": name, "version": version} | shown

    def _judged(self, view: WorldView, orders: tuple[Order, ...]) -> tuple[list[Violation], Blast, OrderFutures]:
        broken = violations(view, orders, self.who, self.world)
        if any(each.rule in ("impossible", "once") for each in broken):
            return broken, blast_of(view, orders, OrderFutures()), OrderFutures()
        futures = self.world.futures(orders)
        return broken + foreseen(view, futures), blast_of(view, orders, futures), futures

    def latest(self, what: str) -> str:
        """Return the id of the caller's latest plan (`what`: "plan") or transaction ("applied"). Raises InputError."""
        for entry in reversed(self.audit.entries):
            if entry.what == what and entry.who == self.who.user:
                return entry.plan if what == "plan" else entry.txn
        kind = "plan" if what == "plan" else "transaction"
        raise InputError("last", f"a {kind} of {self.who.user} in the audit log")

    # --- act ------------------------------------------------------------------------------------------------------

    def question(self, plan_id: str) -> str:
        """Return what to ask a person before this plan is applied; "": no approval is needed. Raises RefusalError."""
        with self.alone():
            plan = self._plan_of(plan_id)
            view = self.world.view()
            blast = blast_of(view, plan.orders, self.world.futures(plan.orders))
        beyond = blast.beyond(self.limit)
        if not beyond:
            return ""
        orders = some((sentence(order) for order in plan.orders), 10)
        return f"{self.who.user} wants to apply {plan_id}: {orders}. It affects {', '.join(beyond)}."

    def apply(self, plan_id: str, reason: str, approved: str = "") -> dict[str, Any]:
        """Carry out a plan, all of it or nothing. `approved` names the person who approved it. Raises RefusalError.

        A plan that was already applied is not applied again: the answer is the same.
        """
        with self.alone(), self._refusals_noted(plan=plan_id, reason=one_line(reason)):
            plan = self._plan_of(plan_id)
            txn = f"t{plan_id[1:]}"
            if txn in self.audit.txns:
                return self._outcome(txn)
            reason = _reason(reason)
            view = self.world.view()
            self._check_version(plan, view)
            broken, blast, _ = self._judged(view, plan.orders)
            if broken:
                raise RefusalError("violations", "; ".join(each.sentence for each in broken))
            self._check_budget(blast.gpu_hours_lost)
            beyond = blast.beyond(self.limit)
            if beyond and not approved:
                raise RefusalError("person", f"a person must approve this plan: it affects {', '.join(beyond)}")
            lost = blast.gpu_hours_lost * 3600
            self._carry_out(txn, plan.orders, plan=plan_id, reason=reason, lost_gpu_s=lost, approved=approved)
            return self._outcome(txn)

    def undo(self, txn: str, reason: str) -> dict[str, Any]:
        """Undo a transaction within 15 minutes, as far as possible. Raises RefusalError."""
        with self.alone(), self._refusals_noted(undoes=txn, reason=one_line(reason)):
            entries = self.audit.txns.get(txn)
            if not entries:
                raise RefusalError("unknown", f"transaction {safe_id(txn)} does not exist")
            first, last = entries[0], entries[-1]
            if first.who != self.who.user and self.who.role is not Role.OPERATOR:
                raise RefusalError("own", f"transaction {txn} belongs to {first.who}")
            if any(each.undoes == txn and self._is_done(each.txn) for each in self.audit.entries if each.txn):
                raise RefusalError("undone", f"transaction {txn} has already been undone")
            if last.what not in ("applied", "interrupted"):
                raise RefusalError("undone", f"transaction {txn} has failed, and its changes were undone")
            if self.world.now() - last.time_us > UNDO_WITHIN:
                raise RefusalError("late", "a transaction can be undone for 15 minutes only; make a new plan")
            done = [each.done for each in entries if each.done is not None]
            orders = tuple(order for one in reversed(done) for order in one.undo)
            if not orders:
                raise RefusalError("final", some({one.cannot for one in done}) or "nothing was done")
            reason = _reason(reason)
            view = self.world.view()
            for one in done:
                _check_untouched(view, one)
            broken, blast, _ = self._judged(view, orders)
            if broken:
                raise RefusalError("violations", "; ".join(each.sentence for each in broken))
            self._check_budget(blast.gpu_hours_lost)
            own = f"u{self.audit.next_seq}-{txn}"
            self._carry_out(own, orders, undoes=txn, reason=reason, lost_gpu_s=blast.gpu_hours_lost * 3600)
            kept = sorted({one.cannot for one in done if one.cannot})
            return self._outcome(own) | {"not_undone": kept}

    def submit(self, order: Any, key: str = "", reason: str = "") -> dict[str, Any]:
        """Queue a job at once, since it harms nobody. The same `key` again gives the same job. Raises RefusalError."""
        given = {"op": "submit"} | order if isinstance(order, dict) else order
        (wanted,) = parse_orders([given])
        if not isinstance(wanted, o.Submit):
            raise InputError("submit", "the fields of a job", kind_of(wanted))
        with self.alone(), self._refusals_noted(orders=(wanted,)):
            for entry in self.audit.entries:
                if key and entry.key == key and entry.who == self.who.user and entry.what == "apply":
                    return self._outcome(entry.txn)
            view = self.world.view()
            broken = violations(view, (wanted,), self.who, self.world)
            broken += foreseen(view, self.world.futures((wanted,)))
            if broken:
                raise RefusalError("violations", "; ".join(each.sentence for each in broken))
            self._check_budget(0.0)
            txn = f"s{self.audit.next_seq}"
            self._carry_out(txn, (wanted,), key=one_line(key, 100), reason=one_line(reason) or "a submission")
            return self._outcome(txn)

    def step(self, duration_us: int) -> dict[str, Any]:
        """Advance the time of a simulated world. Raises RefusalError on any other."""
        with self.alone(), self._refusals_noted():
            world = self.world
            if not isinstance(world, SimulatedWorld) or not world.carries:
                raise RefusalError("world", "time can be advanced only in a simulated world")
            if self.who.role is not Role.OPERATOR:
                raise RefusalError("role", "only operators may advance time")
            if not 0 <= duration_us <= MOST_STEP:
                raise InputError("step", "0 seconds to 366 days", duration_us)
            world.step(world.now() + duration_us)
            entry = self._write("step", version=world.view().version)
            return {"now_us": entry.time_us, "version": entry.version}

    # --- how it is done ---------------------------------------------------------------------------------------------

    def _plan_of(self, plan_id: str) -> OpsEntry:
        plan = self.audit.plans.get(plan_id)
        if plan is None:
            raise RefusalError("unknown", f"plan {safe_id(plan_id)} does not exist; make a plan first")
        if plan.who != self.who.user and self.who.role is not Role.OPERATOR:
            raise RefusalError("own", f"plan {plan_id} belongs to {plan.who}")
        return plan

    def _check_version(self, plan: OpsEntry, view: WorldView) -> None:
        if plan.version == view.version:
            return
        before = self._facts.get(plan.plan)
        what = some(map(safe_id_of, changed(before, view.facts()))) if before is not None else "something"
        raise RefusalError("stale", f"the state has changed since the plan was made ({what}); plan again")

    def _check_budget(self, gpu_hours: float) -> None:
        """Check the caller's number of applied plans, and the GPU-hours lost, in the last hour. Raises RefusalError."""
        since = self.world.now() - HOUR
        mine = [e for e in self.audit.entries if e.what == "apply" and e.who == self.who.user and e.time_us > since]
        if len(mine) >= self.limit.applies_per_hour:
            raise RefusalError("rate", f"at most {self.limit.applies_per_hour} changes in an hour; try again later")
        spent = sum(entry.lost_gpu_s for entry in mine) / 3600
        most = self.limit.gpu_hours_per_hour
        if gpu_hours and spent + gpu_hours > most:
            raise RefusalError(
                "budget", f"at most {most:g} GPU-hours may be lost in an hour: {spent:g} were, this loses {gpu_hours:g}"
            )

    def _carry_out(self, txn: str, orders: tuple[Order, ...], **fields: Any) -> None:
        """Carry out orders one after the other; if an order fails, undo the earlier orders. Raises RefusalError."""
        try:
            for entries in self.audit.txns.values():
                if entries[-1].what in OPEN:
                    raise AuditBusyError(entries[-1].who)
            self._write("apply", txn=txn, orders=orders, **fields)
        except AuditBusyError as error:
            raise RefusalError("busy", str(error)) from None
        done: list[Done] = []
        try:
            for order in orders:
                done.append(self.world.carry_out(order, self.who))
                self._write("done", txn=txn, done=done[-1], undoes=fields.get("undoes", ""))
        except InputError as error:
            left = self._taken_back(txn, done)
            self.world.settle()
            self._write("failed", txn=txn, sentence=one_line(f"{error}{left}"), version=self.world.view().version)
            raise RefusalError("failed", f"order {len(done) + 1} cannot be carried out: {error}{left}") from None
        self.world.settle()
        self._write("applied", txn=txn, version=self.world.view().version, undoes=fields.get("undoes", ""))

    def _taken_back(self, txn: str, done: list[Done]) -> str:
        """Undo what was done; return a text about what could not be undone ("" if nothing)."""
        left = [one.cannot for one in done if one.cannot]
        for order in (order for one in reversed(done) for order in one.undo):
            try:
                self._write("done", txn=txn, done=self.world.carry_out(order, self.who))
            except InputError as error:
                left.append(str(error))
        return f" (not undone: {some(left)})" if left else " (the orders before it have been undone)" * bool(done)

    def _is_done(self, txn: str) -> bool:
        return any(entry.what in ("applied", "interrupted") for entry in self.audit.txns.get(txn, ()))

    def _outcome(self, txn: str) -> dict[str, Any]:
        """Return the result of a transaction as an answer."""
        entries = self.audit.txns[txn]
        done = [entry.done for entry in entries if entry.done is not None]
        last = entries[-1]
        return {
            "txn": txn,
            "state": last.what,
            "did": [sentence(one.order) for one in done],
            "jobs": [safe_id(one.job) for one in done if one.job],
            "version": last.version,
            "undo_until_us": last.time_us + UNDO_WITHIN if any(one.undo for one in done) else None,
            "sentence": last.sentence,
        }


def replay(world: SimulatedWorld, entries: list[OpsEntry]) -> None:
    """Repeat the actions of an audit on a simulated world. Raises InputError if the resulting state differs."""
    for entry in entries:
        if entry.what not in ("done", "step", "applied", "failed", "interrupted"):
            continue
        if entry.time_us > world.now():
            world.step(entry.time_us)
        if entry.done is not None:
            world.carry_out(entry.done.order, Caller(entry.who, Role.OPERATOR))
        if entry.what in ("applied", "failed", "interrupted"):
            world.settle()
        if entry.version and entry.version != world.view().version:
            raise InputError(f"audit, entry {entry.seq}", "the recorded state, when the entries are replayed")


def _with_meant_ids(order: Order) -> Order:
    return msgspec.structs.replace(order, job=meant(job_of(order))) if job_of(order) else order


def safe_id_of(fact: str) -> str:
    """Return a sentence about a changed fact with the name of the thing encoded by `safe_id`."""
    kind, _, rest = fact.partition(" ")
    for end in (" is new", " is gone", " has changed"):
        if rest.endswith(end):
            return f"{kind} {safe_id(rest[: -len(end)])}{end}"
    return one_line(fact)


def _reason(text: str) -> str:
    found = one_line(text).strip()
    if len(found) < 3:
        raise RefusalError("reason", "a reason of at least 3 characters is required, for the audit log")
    return found


def _how_far(entries: list[OpsEntry]) -> str:
    done = sum(entry.done is not None for entry in entries)
    of = len(entries[0].orders)
    return f"{done} of {of} orders are known to be carried out; check the effect of order {min(done + 1, of)}"


def _check_untouched(view: WorldView, done: Done) -> None:
    """Raise RefusalError if the job, node or queue of a carried-out order has been changed since."""
    order, job = done.order, view.jobs.get(done.job)
    stands = True
    if isinstance(order, o.Hold):
        stands = job is not None and job.phase == "held"
    elif isinstance(order, o.Priority):
        stands = job is not None and job.priority == order.value and not job.runs
    elif isinstance(order, o.Submit):
        stands = job is not None
    elif isinstance(order, o.Unreserve):
        stands = all(each.name != order.name for each in view.booked)
    if not stands:
        raise RefusalError("changed", f"the effect of {kind_of(order)} on {safe_id(done.job)} has been changed since")


def _effects(futures: OrderFutures) -> dict[str, Any]:
    """Return as an answer how the waiting times change, and for which jobs."""
    answer = futures.answer
    if not answer:
        return {"not_foretold": futures.unknown} if futures.unknown else {}
    short = ("job", "before_s", "after_s")

    def rows(name: str) -> list[dict[str, Any]]:
        return [{key: row[key] for key in short} for row in answer[name][:NAMED]]

    return {
        "waits": answer["waits"]["all"],
        "sooner": rows("helped"),
        "later": rows("harmed"),
        "start_now": list(futures.starts),
        "stop": list(futures.stopped),
        "move": list(futures.moves),
        "rests_on": answer["run_times"],
    } | ({"not_foretold": futures.unknown} if futures.unknown else {})
