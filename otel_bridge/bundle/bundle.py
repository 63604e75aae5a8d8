"""Every file of the bundle, made of what is shipped."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from otel_bridge.bundle import grafana
from otel_bridge.shipped import files

if TYPE_CHECKING:
    from collections.abc import Mapping

MARK = Path(".otel-bridge-bundle")
"""Lists what was written, so that what no bundle has any more goes, and the files of others stay."""

RUNBOOK = Path("runbook.md")
"""Where rules' `runbook_url` leads, unless `otel-bridge rules build --runbook-url` names another page."""

SCRAPE = """\
# For scrape_config_files. Exemplars are kept with --enable-feature=exemplar-storage only.
scrape_configs:
  - job_name: otel-bridge
    scrape_interval: 15s
    static_configs:
      - targets: [127.0.0.1:9464]
"""


def bundle() -> dict[Path, str]:
    """The text of each file by its path below the bundle's folder.

    Raises:
        FileNotFoundError: what is shipped is not there.
    """
    dashboards = files("dashboards/generated", "*.json")
    rules = files("alerts/generated", "prometheus/*.yaml")
    operator = files("alerts/generated", "prometheus-operator/*.yaml")
    collector = files("collector-config", "*/*.yaml")
    route = resources.files("otel_bridge.control").joinpath("gateways/alertmanager.yml").read_text("utf-8")
    out = {Path("grafana/dashboards", path): text for path, text in dashboards.items()}
    for path, text in dashboards.items():
        document = json.loads(text)
        out[Path("grafana/import", path)] = grafana.written(grafana.export(document))
        out[Path("kubernetes/dashboards", path).with_suffix(".yaml")] = _config_map(
            path, document["uid"], text
        )
    out[Path("grafana/provisioning/dashboards/otel-bridge.yaml")] = grafana.DASHBOARDS
    out[Path("grafana/provisioning/datasources/otel-bridge.yaml")] = grafana.DATASOURCES
    out |= {Path("prometheus/rules", path.name): text for path, text in rules.items()}
    out |= {Path("kubernetes/rules", path.name): text for path, text in operator.items()}
    out[RUNBOOK] = files("alerts", RUNBOOK.name)[RUNBOOK]
    out[Path("prometheus/scrape.yaml")] = SCRAPE
    out[Path("alertmanager/alertmanager.yml")] = route
    out |= {Path("collector", path): text for path, text in collector.items()}
    out[MARK] = "".join(f"{path}\n" for path in sorted(out))
    return out


def write(folder: Path, made: Mapping[Path, str]) -> None:
    """Write all files below a folder; those of an earlier bundle that are none of them are removed."""
    for path in leftovers(folder, made):
        path.unlink()
    for path, text in made.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def drift(folder: Path, made: Mapping[Path, str]) -> list[Path]:
    """Files that are not what would be written, and those that would not be there."""
    changed = [folder / path for path, text in made.items() if _text(folder / path) != text]
    return [*changed, *leftovers(folder, made)]


def leftovers(folder: Path, made: Mapping[Path, str]) -> list[Path]:
    """Files that an earlier bundle wrote and this one would not."""
    listed = (_text(folder / MARK) or "").splitlines()
    inside = folder.resolve()
    paths = [folder / name for name in listed if Path(name) not in made]
    return [path for path in paths if path.is_file() and inside in path.resolve().parents]


def _text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None


def _config_map(path: Path, uid: str, text: str) -> str:
    """A dashboard as Grafana's sidecar finds it: by the label."""
    made: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{uid}-dashboard",
            "labels": {"grafana_dashboard": "1", "app.kubernetes.io/name": "otel-bridge"},
            "annotations": {"grafana_folder": "OTel Bridge"},
        },
        "data": {path.name: text},
    }
    return yaml.dump(made, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as people read them."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)
