"""Pods that have to be beside others, or evenly spread among domains: whether a node will do for one of them now.

Sources: the filters of kube-scheduler's plugins InterPodAffinity and PodTopologySpread, as version 1.34 has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from kant.kube.follow.mirror import is_over
from kant.kube.objects.views import Pod
from kant.kube.reconcile.neighbours import NOBODY, Neighbours, Placed
from kant.kube.translate.neighbours import Rule, Spread, domain_of, spreads_of, wanted_beside
from kant.kube.translate.node_facts import admits
from kant.kube.translate.pods import whole_selection
from kant.kube.translate.selectors import Selection


class Companions:
    """Asks of the pods that have nodes, or are promised some, and of those that are to be placed with them."""

    def __init__(self, neighbours: Neighbours) -> None:
        self.neighbours = neighbours
        self.mirror = neighbours.mirror
        self._seen: tuple[int, int, int] = (-1, -1, -1)
        self._taken = 0  # how many of the promises are in the counts
        self._counts: dict[tuple[Rule, int], tuple[Counter[str], Mapping[str, str] | None]] = {}
        self._among: dict[tuple[Spread, Selection], dict[str, str]] = {}  # kept as long as the counts that name them

    def scattered(self, placed: Placed, going: Collection[str] = NOBODY) -> Rule | None:
        """A rule of required affinity that these pods break if they all get these places; None where they keep all.

        It is kept where they could come one by one, each beside a pod that is there. While there is none anywhere, the
        first that its own rule is about may go anywhere; so all that have none but their own kind are in one domain.
        """
        carried: dict[Rule, list[tuple[str, Pod]]] = {}
        for node, pod in placed:
            for rule in wanted_beside(pod):
                carried.setdefault(rule, []).append((node, pod))
        for rule, carriers in carried.items():
            there, own = self.count(rule, (), going), {pod.metadata.uid for _, pod in carriers}
            some = there.total() or any(self._is_met(pod, going) for _, pod in carriers)
            others = {
                self._domain(rule.key, node)
                for node, pod in placed
                if pod.metadata.uid not in own and rule.is_about(pod)
            }
            wanted = {self._domain(rule.key, node) for node, pod in carriers if rule.is_about(pod)}
            first = ""
            for domain in dict.fromkeys(self._domain(rule.key, node) for node, _ in carriers):
                if domain is None:
                    return rule
                if there[domain] or domain in others:
                    continue
                if first or domain not in wanted or some:
                    return rule
                first = domain
        return None

    def uneven(self, placed: Placed, going: Collection[str] = NOBODY) -> Spread | None:
        """A constraint that these pods break if they all get these places, counted when they have them; None where
        they keep all."""
        carried: dict[tuple[Spread, Selection], list[tuple[str, Pod]]] = {}
        for node, pod in placed:
            for spread in spreads_of(pod):
                carried.setdefault((spread, whole_selection(pod)), []).append((node, pod))
        for (one, _), carriers in carried.items():
            among = self.eligible(one, carriers[0][1])
            counts = self.count(one.like, placed, going, among=among)
            domains = set(among.values())
            emptiest = min((counts[domain] for domain in domains), default=0) if len(domains) >= one.least else 0
            for node, pod in carriers:
                own = self._domain(one.like.key, node)
                uncounted = node not in among and one.like.is_about(pod)
                if own is None or counts[own] + uncounted - emptiest > one.skew:
                    return one
        return None

    def lacks(self, pod: Pod, node: str, but_for: Collection[Rule | Spread] = ()) -> bool:
        """Whether the node does not meet the pod's required affinity, but for some rules."""
        wanted = [rule for rule in wanted_beside(pod) if rule not in but_for]
        for rule in wanted:
            own, there = self._domain(rule.key, node), self.count(rule)
            if own is None or not (there[own] or (rule.is_about(pod) and not self._is_met(pod))):
                return True
        return False

    def _is_met(self, pod: Pod, going: Collection[str] = NOBODY) -> bool:
        """Whether a pod that one of its rules of required affinity is about is in any domain of that rule."""
        return any(self.count(rule, (), going).total() for rule in wanted_beside(pod))

    def skewed(self, pod: Pod, node: str, but_for: Collection[Rule | Spread] = ()) -> bool:
        """Whether the pod breaks one of its spread constraints at the node, but for some."""
        for one in spreads_of(pod):
            if one in but_for:
                continue
            own, among = self._domain(one.like.key, node), self.eligible(one, pod)
            domains, counts = set(among.values()), self.count(one.like, among=among)
            emptiest = min((counts[domain] for domain in domains), default=0) if len(domains) >= one.least else 0
            if own is None or counts[own] + one.like.is_about(pod) - emptiest > one.skew:
                return True
        return False

    def spread_over(self, spread: Spread, pod: Pod) -> Counter[str]:
        """How many pods that a constraint is about each domain has, among which the pod is to be spread."""
        among = self.eligible(spread, pod)
        counts = self.count(spread.like, among=among)
        return Counter({domain: counts[domain] for domain in sorted(set(among.values()))})

    def _domain(self, key: str, node: str) -> str | None:
        view = self.mirror.nodes.get(node)
        return domain_of(view.metadata.labels, node, key) if view is not None else None

    def eligible(self, spread: Spread, pod: Pod) -> dict[str, str]:
        """The nodes among which the pod is to be spread, with their domains."""
        self._refresh()
        wishes = whole_selection(pod)
        found = self._among.get((spread, wishes))
        if found is None:
            free = Selection((), None, wishes.tolerations)
            found = self._among[spread, wishes] = {}
            for name, view in self.mirror.nodes.items():
                domains = [domain_of(view.metadata.labels, name, key) for key in spread.keys]
                domain = domain_of(view.metadata.labels, name, spread.like.key) if None not in domains else None
                selected = not spread.by_selector or wishes.selects(view.metadata.labels or {}, name)
                if domain is not None and selected and (not spread.by_taints or admits(free, view)):
                    found[name] = domain
        return found

    def count(
        self,
        rule: Rule,
        placed: Placed = (),
        going: Collection[str] = NOBODY,
        among: Mapping[str, str] | None = None,
    ) -> Counter[str]:
        """How many pods that a rule is about are in each domain. With `among` only those on these nodes, and none that
        is ending."""
        self._refresh()
        mirror, known = self.mirror, (rule, id(among))
        if known in self._counts:
            counts = self._counts[known][0]
        else:
            counts = Counter()
            self._counts[known] = counts, among
            for domain, pods in self.neighbours.about(rule).items():
                counts[domain] += sum(self._stays(one, among) for one in pods)
            for node, uid in self.neighbours.promises:
                self._promise(rule, counts, among, node, uid)
        if not placed and not going:
            return counts
        counts = counts.copy()
        for node, one in placed:
            there = self._domain(rule.key, node)
            if there is not None and (among is None or node in among) and rule.is_about(one):
                counts[there] += 1
        for gone in [mirror.pods[uid] for uid in going if uid in mirror.pods]:
            there = self._domain(rule.key, gone.spec.node_name)
            if there is not None and rule.is_about(gone) and self._stays(gone, among):
                counts[there] -= 1
        return counts

    def _stays(self, pod: Pod, among: Mapping[str, str] | None) -> bool:
        node, meta = pod.spec.node_name, pod.metadata
        if meta.uid in self.neighbours.leaving.get(node, {}) or is_over(pod):
            return False
        return among is None or (node in among and meta.deletion_timestamp is None)

    def _promise(self, rule: Rule, counts: Counter[str], among: Mapping[str, str] | None, node: str, uid: str) -> None:
        """Count a pod that is to be bound to a node."""
        pod, there = self.mirror.pods.get(uid), self._domain(rule.key, node)
        if pod is not None and not pod.spec.node_name and there is not None and (among is None or node in among):
            counts[there] += rule.is_about(pod)

    def _refresh(self) -> None:
        """Begin anew where anything but the promises has changed, and count those that came since."""
        neighbours = self.neighbours
        seen = (self.mirror.version, neighbours.forgotten, sum(map(len, neighbours.leaving.values())))
        if seen != self._seen:
            self._seen, self._counts, self._among = seen, {}, {}
        for node, uid in neighbours.promises[self._taken :] if self._counts else ():
            for (rule, _), (counts, among) in self._counts.items():
                self._promise(rule, counts, among, node, uid)
        self._taken = len(neighbours.promises)
