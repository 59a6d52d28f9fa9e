"""`kubectl kant why` for whoever may see the pods of their own namespace alone: what Kant has written on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from kant.cli.output import Reply
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.kube.connect.config import Config

MORE = "evidence, expected start and what would help are for the role kant-inspector"


class OwnPods:
    """Answers as `Live` does, as far as one's own namespace goes."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def why(self, namespace: str, pod: str) -> Reply:
        """Why a pod waits, as Kant has said on it; or where its gang runs."""
        import asyncio

        from kant.kube.user.glance import own_pods

        answer = asyncio.run(own_pods(self.config, namespace or self.config.namespace, pod))

        def show() -> None:
            waits = answer["status"] == "pending"
            print(f"{answer['job']}: {answer['sentence'] or ('it waits' if waits else 'it does not wait')}")
            placed = [f"{name} on {node}" for name, node in answer["pods"].items() if node]
            left = [name for name, node in answer["pods"].items() if not node]
            for title, names in (("runs", placed), ("waits", left)):
                if names:
                    print(f"{title}: {', '.join(names[:8])}" + (f" and {len(names) - 8:,} more" if names[8:] else ""))
            if waits:
                print(MORE)

        return Reply(answer, show)

    def eta(self, namespace: str, pod: str | None) -> NoReturn:
        raise self._refusal("pods")

    def queues(self) -> NoReturn:
        raise self._refusal("pods")

    def top(self) -> NoReturn:
        raise self._refusal("pods")

    def status(self, optimality: bool) -> NoReturn:
        raise self._refusal("pods")

    def _refusal(self, what: str) -> InputError:
        said = f"no permission to list {what} in the whole cluster: it needs the role kant-inspector (403)"
        return InputError("the API server", f"one that lets us in ({said})")
