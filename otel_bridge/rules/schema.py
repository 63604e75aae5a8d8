"""The JSON schema of rule sets, for editors; alerts/rules.schema.json is its copy."""

from __future__ import annotations

import json

from otel_bridge.rules.language import RuleSet


def schema() -> str:
    """The schema as text, as it is committed."""
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "otel_bridge rule set",
        **{key: value for key, value in RuleSet.model_json_schema(by_alias=True).items() if key != "title"},
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
