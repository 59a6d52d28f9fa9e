"""Other proxies before the same engine, where they are installed.

Envoy, alone and with our picker, nginx, and SGLang's gateway (`pip install sglang-router`, 0.3). Each has one thread.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

TYPES = "type.googleapis.com/envoy.extensions.filters"
ENVOY = """
static_resources:
  listeners:
    - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": {types}.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: clients
                route_config:
                  virtual_hosts:
                    - name: engine
                      domains: ["*"]
                      routes: [{{ match: {{ prefix: "/" }}, route: {{ cluster: engine, timeout: 0s }} }}]
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: {{ "@type": {types}.http.router.v3.Router }}
  clusters:
    - name: engine
      load_assignment:
        cluster_name: engine
        endpoints:
          - lb_endpoints:
              - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {engine} }} }} }}
"""

NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e; client_body_buffer_size 64k; keepalive_requests 1000000;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 512; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def installed(program: str) -> str | None:
    """A program beside this Python, on the path, or where Debian has daemons."""
    places = (str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin")
    return shutil.which(program, path=os.pathsep.join(places))


def with_picker(port: int, engine: int, picker: int) -> str:
    """The configuration of deploy/envoy.yaml, before one engine."""
    text = (Path(__file__).parents[1] / "deploy" / "envoy.yaml").read_text(encoding="utf-8")
    for said, ours in ((10000, port), (9002, picker), (8000, engine), (8001, engine)):
        text = text.replace(f"port_value: {said} ", f"port_value: {ours} ")
    return text


def rivals(folder: Path, engine: int, picker: int) -> dict[str, tuple[subprocess.Popen[str], int]]:
    """Those that are installed, by name: the process, and its port."""
    found: dict[str, tuple[subprocess.Popen[str], int]] = {}
    for name, text in (("envoy", ENVOY), ("envoy with kant serve pick", ""), ("nginx", NGINX)):
        program = installed(name.split()[0])
        if program is None:
            continue
        port = free_port()
        file = folder / f"{name}.conf.yaml"
        if text:
            text = text.format(port=port, engine=engine, folder=folder, types=TYPES)
        file.write_text(text or with_picker(port, engine, picker), encoding="utf-8")
        flags = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "off"] if name != "nginx" else []
        command = [program, "-c", str(file), *flags]
        found[name] = (subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True), port)  # its access log
    gateway = installed("smg")
    if gateway is not None:
        port, worker = free_port(), f"http://127.0.0.1:{engine}"
        command = [gateway, "launch", "--worker-urls", worker, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--policy", "round_robin", "--prometheus-port", str(free_port())]
        one_thread = {**os.environ, "TOKIO_WORKER_THREADS": "1"}
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True, env=one_thread
        )
        wait_for(port)
        found["SGLang's gateway"] = (process, port)
    return found


def wait_for(port: int) -> None:
    """Wait until a proxy answers a request."""
    asked = Request(f"http://127.0.0.1:{port}/v1/completions", b'{"model":"m","prompt":"x"}')
    asked.add_header("Content-Type", "application/json")
    for _ in range(600):
        try:
            with urlopen(asked, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"nobody answers at port {port}")
