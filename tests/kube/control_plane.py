"""A real control plane: etcd and kube-apiserver as processes on free ports of loopback, with users of our own."""

from __future__ import annotations

import atexit
import base64
import secrets
import signal
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import trustme
import yaml
from tests.kube.binaries import Binaries
from tests.kube.processes import Brood, free_port, rss_mib
from tests.patience import PATIENCE_S

NAMESPACE = "kant-system"
ACCOUNTS = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated")
USERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "admin": ("admin", ("system:masters",)),
    "kant": (f"system:serviceaccount:{NAMESPACE}:kant", ACCOUNTS),
    "scheduler": ("system:kube-scheduler", ()),
    "tenant": ("tenant", ("tenants",)),
    "nobody": ("nobody", ()),
    "deputy": ("deputy", ()),
    "operator": ("operator", ()),
    "scaler": ("scaler", ()),
    "router": ("router", ()),
}
"""Who may be asked for, by a short name: the name and the groups by which the API server knows them."""

GANG_GATES = ("GenericWorkload", "GangScheduling")
"""Native gang scheduling, alpha in 1.36; its objects are scheduling.k8s.io/v1alpha2, Workload and PodGroup."""
PREEMPTION_GATE = "WorkloadAwarePreemption"
"""What says of a group whether its pods are disrupted one by one or all at once."""
GANG_API = "scheduling.k8s.io/v1alpha2"
TRIES = 5
SPARING = {"GOGC": "400", "GOMAXPROCS": "1"}
"""Of time, not of memory: their garbage is collected a quarter as often, and no idle thread looks for work."""


class NotReadyError(Exception):
    """The control plane did not come up; the sentence ends with the last lines of its log."""


class ControlPlane:
    """One etcd and one kube-apiserver, in a temporary folder that goes with them."""

    def __init__(
        self, binaries: Binaries, *, gates: Sequence[str] = (*GANG_GATES, PREEMPTION_GATE), flags: Sequence[str] = ()
    ) -> None:
        self.binaries, self.gates = binaries, tuple(gates)
        self.folder = Path(tempfile.mkdtemp(prefix="kant-control-plane-"))
        self._brood = Brood(self.folder)
        self._flags = list(flags)
        self._tokens = {user: secrets.token_hex(8) for user in USERS}
        self._port = 0
        atexit.register(self.stop)

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> ControlPlane:
        """Returns when the API server says that it is ready. Raises NotReadyError."""
        begin = time.monotonic()
        (self.folder / "service-account.key").write_text(_signing_key())
        self._certify()
        rows = (f'{self._tokens[user]},{name},{user},"{",".join(groups)}"' for user, (name, groups) in USERS.items())
        (self.folder / "tokens.csv").write_text("\n".join(rows) + "\n")
        try:
            self._start_etcd()
            for attempt in range(TRIES):
                self._port = free_port()
                if self._start_apiserver(last=attempt == TRIES - 1):
                    break
        except BaseException:
            self.stop()
            raise
        self.boot_s = time.monotonic() - begin
        return self

    def __enter__(self) -> ControlPlane:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends all processes and removes the folder. May be called again."""
        atexit.unregister(self.stop)
        self._brood.end()

    def stop_apiserver(self, *, kill: bool = True) -> None:
        """An outage: connections are refused until `start_apiserver`. What etcd holds is kept."""
        self._brood.stop("kube-apiserver", kill=kill)

    def start_apiserver(self) -> None:
        """Up again at the same address."""
        self._start_apiserver(last=True)

    def restart_apiserver(self, *, away_s: float = 0.0) -> None:
        """Kill the API server, leave it away for a time, and start it again at the same address."""
        self.stop_apiserver()
        time.sleep(away_s)
        self.start_apiserver()

    def pause(self, name: str = "kube-apiserver") -> None:
        """SIGSTOP: connections stay open and nobody answers."""
        self._brood.pause(name)

    def resume(self, name: str = "kube-apiserver") -> None:
        self._brood.signal(name, signal.SIGCONT)

    def run(self, name: str, command: list[str]) -> None:
        """Another process of the cluster, which ends with the control plane at the latest."""
        self._brood.start(name, command)

    def end(self, name: str) -> None:
        self._brood.stop(name)

    # --- who asks, and where -------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def etcd(self) -> str:
        """Where etcd answers, to whoever asks."""
        return self._etcd

    @property
    def ca(self) -> Path:
        """The certificate of whoever has signed the API server's."""
        return self.folder / "ca.crt"

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca))

    def token(self, user: str = "admin") -> str:
        return self._tokens[user]

    def kubeconfig(self, user: str = "kant", *, server: str = "", token: str = "") -> Path:
        """A kubeconfig file for a user of USERS; with `server`, for a proxy that speaks plain HTTP."""
        cluster = {"server": server} if server else {"server": self.url, "certificate-authority": str(self.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": user,
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token or self.token(user)}}],
            "contexts": [{"name": user, "context": {"cluster": "test", "user": user, "namespace": "default"}}],
        }
        path = self.folder / f"{user}-{secrets.token_hex(4)}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    def pids(self) -> dict[str, int]:
        """The processes by name, for figures of CPU and memory."""
        return {name: process.pid for name, process in self._brood.running.items()}

    def memory_mib(self) -> dict[str, float]:
        return {name: rss_mib(pid) for name, pid in self.pids().items()}

    def log(self, name: str = "kube-apiserver", lines: int = 20) -> str:
        return self._brood.log(name, lines)

    # --- the parts -----------------------------------------------------------------------------------------------

    def _start_etcd(self) -> None:
        for attempt in range(TRIES):
            self._etcd = f"http://127.0.0.1:{free_port()}"
            peer = f"http://127.0.0.1:{free_port()}"
            command = self.binaries.run_etcd(self.folder / f"etcd-{attempt}", self._etcd, peer)
            self._brood.start("etcd", command, **SPARING)
            if self._answers("etcd", f"{self._etcd}/health"):
                return
        raise NotReadyError(f"etcd did not start: {self._brood.log('etcd')}")

    def _start_apiserver(self, *, last: bool) -> bool:
        self._brood.start("kube-apiserver", self._apiserver(), **SPARING)
        if self._answers("kube-apiserver", f"{self.url}/readyz") and self._answers(
            "kube-apiserver", f"{self.url}/api/v1/namespaces/default"
        ):
            return True
        if last:
            raise NotReadyError(f"kube-apiserver did not start: {self._brood.log('kube-apiserver')}")
        return False

    def _certify(self) -> None:
        """On an elliptic curve: by the RSA key that the API server makes, a third of its time is handshakes."""
        authority = trustme.CA()
        own = authority.issue_cert("127.0.0.1")
        authority.cert_pem.write_to_path(self.ca)
        own.cert_chain_pems[0].write_to_path(self.folder / "tls.crt")
        own.private_key_pem.write_to_path(self.folder / "tls.key")

    def _apiserver(self) -> list[str]:
        key = str(self.folder / "service-account.key")
        flags = {
            "authorization-mode": "RBAC",
            "etcd-servers": self._etcd,
            "bind-address": "127.0.0.1",
            "secure-port": str(self._port),
            "tls-cert-file": str(self.folder / "tls.crt"),
            "tls-private-key-file": str(self.folder / "tls.key"),
            "service-account-issuer": "https://kant.test",
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "service-cluster-ip-range": "10.0.0.0/16",
            "token-auth-file": str(self.folder / "tokens.csv"),
            "disable-admission-plugins": "ServiceAccount,TaintNodesByCondition",
            "endpoint-reconciler-type": "none",
            "enable-priority-and-fairness": "false",
            "max-requests-inflight": "4000",
            "max-mutating-requests-inflight": "4000",
            "delete-collection-workers": "16",
        }
        if self.gates:
            flags["feature-gates"] = ",".join(f"{gate}=true" for gate in self.gates)
        if set(GANG_GATES) <= set(self.gates):
            flags["runtime-config"] = f"{GANG_API}=true"
        return [*self.binaries.apiserver, *(f"--{flag}={value}" for flag, value in flags.items()), *self._flags]

    def _answers(self, name: str, url: str) -> bool:
        """Wait until a process answers 200 at `url`; False if it ended before. Raises NotReadyError in the end."""
        end = time.monotonic() + PATIENCE_S
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.token()}"})
        while time.monotonic() < end:
            if not self._brood.alive(name):
                return False
            try:
                handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
                if url.startswith("https"):
                    handlers.append(urllib.request.HTTPSHandler(context=self.tls()))
                with urllib.request.build_opener(*handlers).open(request, timeout=30):
                    return True
            except (OSError, urllib.error.URLError, ssl.SSLError):
                time.sleep(0.05)
        raise NotReadyError(f"{name} did not answer within {PATIENCE_S:.0f} s: {self._brood.log(name)}")


def _signing_key() -> str:
    """A key on the curve P-256 in the form of SEC 1 (RFC 5915): the API server signs tokens with it."""
    secret = (int.from_bytes(secrets.token_bytes(32)) >> 1 | 1).to_bytes(32)  # below the order of the curve
    der = bytes.fromhex("3031020101" + "0420") + secret + bytes.fromhex("a00a06082a8648ce3d030107")
    return f"-----BEGIN EC PRIVATE KEY-----\n{base64.b64encode(der).decode()}\n-----END EC PRIVATE KEY-----\n"
