"""Reports of a leader about itself and the cluster: malformed objects, built states, its journal, missing Queues."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kant.kube.lead.settings import DriverSettings
from kant.kube.notify.recorder import EventRecorder
from kant.kube.objects.views import Meta
from kant.kube.reconcile.translation import Translation
from kant.kube.serve.metrics import KubeTelemetry
from kant.live.core import Core
from kant.live.logs import log_event

log = logging.getLogger("kant.kube")


class Reports:
    """Each report is a log line, a metric, or an Event of the object concerned."""

    def __init__(
        self, settings: DriverSettings, translation: Translation, recorder: EventRecorder, telemetry: KubeTelemetry
    ) -> None:
        self.settings = settings
        self.translation = translation
        self.recorder = recorder
        self.telemetry = telemetry
        self._faults: dict[str, tuple[str, str]] = {}  # by malformed node: its uid, and the report
        self._journal_trouble = ""
        self._queues_gone = False

    def malformed(self, kind: str, meta: Meta, sentence: str) -> None:
        """Report an object that cannot be decoded and is left out."""
        known = {"pods": "Pod", "nodes": "Node"}.get(kind)
        if known is not None and meta.uid:
            self._fault(known, meta, f"it does not match the API: {sentence}")
        else:
            log_event(log, f"{kind} {meta.name} does not match the API: {sentence}", logging.WARNING)

    def nodes(self, names: Iterable[str]) -> None:
        """Report the errors in these nodes, each error only once until it changes."""
        for name in names:
            view = self.translation.mirror.nodes.get(name)
            text = self.translation.complaints.get(f"node {name}", "")
            if view is None or not text:
                self._faults.pop(name, None)
            elif self._faults.get(name) != (view.metadata.uid, text):
                self._faults[name] = view.metadata.uid, text
                self._fault("Node", view.metadata, text)

    def built(self, core: Core) -> None:
        """Report a state that has been built, and the errors in its objects."""
        state, mirror = core.state, self.translation.mirror
        self.telemetry.follow(state, core.now)
        log_event(log, "state built", nodes=len(state.node_index), pods=len(mirror.pods), waiting=len(state.pending))
        for about, sentence in self.translation.complaints.items():
            if not about.startswith("node "):
                log_event(log, sentence, logging.WARNING, about=about)
        self.nodes(mirror.nodes)

    def look_at_journals(self) -> bool:
        """Report when the journal stops or resumes. Returns whether it needs a new file and thus a rebuilt state."""
        journals = self.settings.journals
        if journals is None:
            return False
        journals.flush()
        if journals.trouble != self._journal_trouble:
            self._journal_trouble = trouble = journals.trouble
            self.telemetry.flag("kant_journal_failed", bool(trouble))
            if trouble:
                text = f"{trouble}; nothing is recorded until the journal can be written, and scheduling continues"
                self.recorder.event(self._lease, "Warning", "JournalStopped", text, "Recording", "Lease")
            else:
                log_event(log, "the journal continues in a new file")
                text = "it continues in a new file"
                self.recorder.event(self._lease, "Normal", "JournalResumed", text, "Recording", "Lease")
        return journals.wants_new_file()

    def look_for_gone_queues(self) -> None:
        """Report changes between three states: there are Queues, the last one is gone, or none is intended to exist."""
        presence = self.translation.queues.presence
        if bool(presence.gone) == self._queues_gone:
            return
        self._queues_gone = gone = bool(presence.gone)
        self.telemetry.flag("kant_queues_gone", gone)
        text = presence.advice(self.settings.namespace) or "a Queue exists again, or none is expected: pods start"
        log_event(log, text, logging.WARNING if gone else logging.INFO)
        if not self.settings.shadow:
            kind, reason = ("Warning", "QueuesGone") if gone else ("Normal", "QueuesBack")
            self.recorder.event(self._lease, kind, reason, text, "Scheduling", "Lease")

    @property
    def _lease(self) -> Meta:
        return Meta(name="kant", namespace=self.settings.namespace)

    def _fault(self, kind: str, meta: Meta, text: str) -> None:
        """Report an error in a Node or a Pod, in the log and as an Event of that object."""
        log_event(log, text, logging.WARNING, about=f"{kind.lower()} {meta.name}")
        if not self.settings.shadow:
            self.recorder.event(meta, "Warning", "Malformed", text, "Scheduling", kind)
