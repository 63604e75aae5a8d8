"""From a service on a panel to its traces: Tempo, Jaeger, and the bridge's own pages."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from dashboards.layout import datasource_variable, text_variable

VARIABLES = (
    datasource_variable("tempo", "Tempo", "tempo"),
    text_variable("jaeger", "Jaeger", "http://localhost:16686"),
    text_variable("bridge", "Bridge's pages", "http://localhost:9464"),
)
_SERVICE = "${__data.fields.Service}"
_SERVICE_OF_LINE = "${__field.labels.service_name}"


def to_traces(*, from_table: bool = False) -> list[dict[str, Any]]:
    """Links of a panel whose series, or rows, are of one service each."""
    service = _SERVICE if from_table else _SERVICE_OF_LINE
    return [
        {"title": "Traces of the service in Tempo", "targetBlank": True, "url": _tempo(service)},
        {
            "title": "Traces of the service in Jaeger",
            "targetBlank": True,
            "url": f"${{jaeger}}/search?service={service}&start=${{__from}}000&end=${{__to}}000",
        },
        {
            "title": "Recent traces of the service at the bridge",
            "targetBlank": True,
            "url": f"${{bridge}}/ui?service={service}",
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


def _tempo(service: str) -> str:
    """Grafana's Explore, with the service's traces of the time shown."""
    query = f'{{resource.service.name="{service}"}}'
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
    # Grafana's own variables must stay readable to it.
    return f"/explore?schemaVersion=1&orgId=1&panes={quote(json.dumps(panes), safe='${}:._')}"
