"""Write the dashboard from the metrics, the templates of the chart from what `kant kube manifests` prints, the profiles
that it knows by name, and the configuration of Envoy in the chart `kant-serve`."""

import shutil
from pathlib import Path

from chart import WRITTEN, chart_profiles, chart_templates, envoy_template
from dashboard import config_map

if __name__ == "__main__":
    manifests = Path(__file__).parents[2] / "src" / "kant" / "kube" / "manifests"
    (manifests / "dashboard.yaml").write_text(config_map(), encoding="utf-8")
    folder = Path(__file__).parent / "kant" / "templates"
    for old in folder.iterdir():
        if old.name not in WRITTEN:
            old.unlink()
    for name, text in chart_templates().items():
        (folder / name).write_text(text, encoding="utf-8")
    profiles = folder.parent / "profiles"
    shutil.rmtree(profiles, ignore_errors=True)
    profiles.mkdir()
    for name, text in chart_profiles().items():
        (profiles / f"{name}.toml").write_text(text, encoding="utf-8")
    serve = Path(__file__).parent / "kant-serve" / "templates" / "_envoy.tpl"
    serve.write_text(envoy_template(), encoding="utf-8")
