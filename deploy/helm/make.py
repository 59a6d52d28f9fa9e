"""Write the templates of the chart from the manifests that `kant kube manifests` prints (src/kant/kube/manifests)."""

from pathlib import Path

from kant.kube.chart import chart_templates

if __name__ == "__main__":
    folder = Path(__file__).parent / "kant" / "templates"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, text in chart_templates().items():
        (folder / name).write_text(text, encoding="utf-8")
