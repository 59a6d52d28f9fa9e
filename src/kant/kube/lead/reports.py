"""Reports of a leader about itself and the cluster: malformed objects, built states, its journal, missing queues."""

from __future__ import annotations

import logging

from kant.kube.lead.settings import DriverSettings
from kant.kube.notify.notifier import Notifier
from kant.kube.objects.views import Meta
from kant.kube.reconcile.translation import Translation
from kant.kube.serve.metrics import KubeTelemetry
from kant.live.core import Core
from kant.live.logs import log_event

log = logging.getLogger("kant.kube")


class Reports:
    """Each is logged, counted in the metrics, or an Event of the object that it is about."""

    def __init__(
        self, settings: DriverSettings, translation: Translation, notifier: Notifier, telemetry: KubeTelemetry
    ) -> None:
        self.settings = settings
        self.translation = translation
        self.notifier = notifier
        self.telemetry = telemetry
        self._journal_trouble = ""
        self._queues_gone = False

    def malformed(self, kind: str, meta: Meta, sentence: str) -> None:
        """Report an object that cannot be decoded, and is left out."""
        known = {"pods": "Pod", "nodes": "Node"}.get(kind)
        if known is not None and meta.uid:
            self.notifier.malformed(known, meta, f"it does not match the API: {sentence}", not self.settings.shadow)
        else:
            log_event(log, f"{kind} {meta.name} does not match the API: {sentence}", logging.WARNING)

    def built(self, core: Core) -> None:
        """Report a state that has been built, and what is wrong with objects."""
        state, mirror, complaints = core.state, self.translation.mirror, self.translation.complaints
        self.telemetry.follow(state, core.now)
        log_event(log, "state built", nodes=len(state.node_index), pods=len(mirror.pods), waiting=len(state.pending))
        for about, sentence in complaints.items():
            if not about.startswith("node "):
                log_event(log, sentence, logging.WARNING, about=about)
        self.notifier.nodes(mirror.nodes, complaints, not self.settings.shadow)

    def look_at_journals(self) -> bool:
        """Report whether the journal is being written. Returns whether it wants a new file, which begins with a rebuilt
        state."""
        journals = self.settings.journals
        if journals is None:
            return False
        journals.flush()
        if journals.trouble != self._journal_trouble:
            self._journal_trouble = journals.trouble
            self.telemetry.recording(not journals.trouble)
            self.notifier.journal(self.settings.namespace, journals.trouble)
        return journals.wants_new_file()

    def look_for_gone_queues(self) -> None:
        """Report that no Queue is left, or that there is one again."""
        presence, namespace = self.translation.queues.presence, self.settings.namespace
        if bool(presence.gone) != self._queues_gone:
            self._queues_gone = bool(presence.gone)
            self.telemetry.queues_gone(self._queues_gone)
            self.notifier.queues(namespace, presence.advice(namespace), not self.settings.shadow)
