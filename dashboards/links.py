"""From a service on a panel to its traces: Tempo, Jaeger, and the bridge's own pages."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from dashboards.layout import datasource_variable, text_variable
from otel_bridge.catalog import K8S_POD_NAME, SERVICE_NAME

VARIABLES = (
    datasource_variable("tempo", "Tempo", "tempo"),
    text_variable("jaeger", "Jaeger", "http://localhost:16686"),
    text_variable("bridge", "Bridge's pages", "http://localhost:9464"),
)
_SERVICE = "${__data.fields.Service}"
_SERVICE_OF_LINE = "${__field.labels.service_name}"
_POD = "${pod}"
_READABLE = "${}:._"
"""Characters that Grafana must find as they are: those of its own variables."""


def to_traces(*, from_table: bool = False, in_pod: bool = False) -> list[dict[str, Any]]:
    """Links of a panel whose series, or rows, are of one service each; `in_pod`: in a row of one pod."""
    service = _SERVICE if from_table else _SERVICE_OF_LINE
    of_what = "the service in the pod" if in_pod else "the service"
    tags = quote(json.dumps({K8S_POD_NAME.key: _POD}), safe=_READABLE)
    return [
        {
            "title": f"Traces of {of_what} in Tempo",
            "targetBlank": True,
            "url": _tempo(service, _POD if in_pod else None),
        },
        {
            "title": f"Traces of {of_what} in Jaeger",
            "targetBlank": True,
            "url": f"${{jaeger}}/search?service={service}&start=${{__from}}000&end=${{__to}}000"
            + (f"&tags={tags}" if in_pod else ""),
        },
        {
            "title": f"Recent traces of {of_what} at the bridge",
            "targetBlank": True,
            "url": f"${{bridge}}/ui?service={service}" + (f"&pod={_POD}" if in_pod else ""),
        },
    ]


def to_root_cause() -> list[dict[str, Any]]:
    """From a service's line to why it is slow."""
    return [
        {
            "title": "Root cause",
            "targetBlank": False,
            "url": (
                "/d/otel-bridge-root-cause?var-datasource=${datasource}&var-job=${job}"
                f"&var-service={_SERVICE_OF_LINE}&${{__url_time_range}}"
            ),
        }
    ]


def _tempo(service: str, pod: str | None) -> str:
    """Grafana's Explore, with the service's traces of the time shown."""
    of_pod = f' && .{K8S_POD_NAME.key}="{pod}"' if pod else ""
    query = f'{{resource.{SERVICE_NAME.key}="{service}"{of_pod}}}'
    panes = {
        "traces": {
            "datasource": "${tempo}",
            "queries": [
                {
                    "refId": "A",
                    "datasource": {"type": "tempo", "uid": "${tempo}"},
                    "queryType": "traceql",
                    "query": query,
                }
            ],
            "range": {"from": "${__from}", "to": "${__to}"},
        }
    }
    return f"/explore?schemaVersion=1&orgId=1&panes={quote(json.dumps(panes), safe=_READABLE)}"
