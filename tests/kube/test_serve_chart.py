"""The chart of the router and the picker: one configuration of Envoy, that Envoy takes, and the rights of the page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.gateway.test_real_envoy import envoy
from tests.kube.live import role_of_page
from tests.kube.test_endpoints_live import DOCS as ROUTING
from tests.kube.test_inference_pool_live import rights as of_picker

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "kant-serve"
__all__ = ["envoy"]


def rendered(helm: str, *values: str) -> list[dict[str, Any]]:
    command = [helm, "template", "chat", str(CHART), "--namespace", "models", *(f"--set={value}" for value in values)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [thing for thing in yaml.safe_load_all(done.stdout) if thing]


def find(objects: list[dict[str, Any]], kind: str, name: str) -> Any:
    (found,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def arguments(objects: list[dict[str, Any]], name: str) -> list[str]:
    (container,) = find(objects, "Deployment", name)["spec"]["template"]["spec"]["containers"]
    return [str(argument) for argument in container["args"]]


def test_the_configuration_of_envoy_in_the_chart_is_the_one_that_is_tested() -> None:
    code = "import chart; print(chart.envoy_template(), end='')"
    done = subprocess.run([sys.executable, "-c", code], cwd=DEPLOY / "helm", check=True, capture_output=True, text=True)
    assert (CHART / "templates" / "_envoy.tpl").read_text() == done.stdout, "run deploy/helm/make.py"


@pytest.mark.parametrize("pool", [True, False])
def test_envoy_takes_what_the_chart_gives_it_and_the_picker_has_the_rights_of_the_page(
    helm_program: str, envoy: str, tmp_path: Path, pool: bool
) -> None:
    values = ["limits.requests=700", "timeouts.idle=60s", "ejection.after=4", "failOpen=false", "saturatedS=2.5"]
    objects = rendered(helm_program, *values, *(["pool=llama", "pickers=3"] if pool else ["direct.enabled=true"]))
    text = find(objects, "ConfigMap", "chat-envoy")["data"]["envoy.yaml"]
    (tmp_path / "envoy.yaml").write_text(text)
    done = subprocess.run(
        [envoy, "--mode", "validate", "-c", str(tmp_path / "envoy.yaml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

    picker, engines = yaml.safe_load(text)["static_resources"]["clusters"]
    assert {
        t[key] for t in picker["circuit_breakers"]["thresholds"] for key in ("max_requests", "max_connections")
    } == {700}
    assert engines["circuit_breakers"] == picker["circuit_breakers"]
    assert engines["outlier_detection"]["consecutive_5xx"] == 4
    hosts = [
        c["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
        for c in (picker, engines)
    ]
    assert hosts == [
        {"address": "chat-picker.models.svc", "port_value": 9002},
        {"address": "chat.models.svc", "port_value": 8000},
    ]
    for service in ("chat", "chat-picker"):
        selector = find(objects, "Service", service)["spec"]["selector"]
        pods = [one["spec"]["template"]["metadata"]["labels"] for one in objects if one["kind"] == "Deployment"]
        assert sum(selector.items() <= labels.items() for labels in pods) == 1
    manager = yaml.safe_load(text)["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    assert (
        manager["stream_idle_timeout"] == "60s" and not manager["http_filters"][0]["typed_config"]["failure_mode_allow"]
    )

    said = arguments(objects, "chat-picker")
    assert ("--pool=llama" in said) == pool and ("--service=chat" in said) != pool
    assert ("--peers=chat-picker:9003" in said) == ("--gossip=0.0.0.0:9003" in said) == pool
    ports = {one["name"]: one["port"] for one in find(objects, "Service", "chat-picker")["spec"]["ports"]}
    (pod,) = find(objects, "Deployment", "chat-picker")["spec"]["template"]["spec"]["containers"]
    assert {(one["name"], one["containerPort"]) for one in pod["ports"]} == ports.items()
    assert f"--metrics=0.0.0.0:{ports['metrics']}" in said
    assert "--saturated-s=2.5" in said and "--namespace=models" in said
    role = find(objects, "Role", "chat")["rules"]
    assert role == (of_picker() if pool else role_of_page(ROUTING, "router"))[0]["rules"]
    if not pool:
        assert arguments(objects, "chat-router")[:3] == ["serve", "route", "--service=chat"]
