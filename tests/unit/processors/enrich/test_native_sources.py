"""Sources read by the native crate: the same bytes and counts as without it, on anything."""

from __future__ import annotations

import json
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge import catalog
from otel_bridge.columns import OwnSources
from otel_bridge.testing import trace_request
from tests.support.enriching import enriching

native = pytest.importorskip("otel_bridge._native.wire", reason="the native crate is not installed")
if not hasattr(native, "Sources"):
    pytest.skip("the installed native crate is older than this source", allow_module_level=True)

CONFIGS = {
    "as it comes": {},
    "explained, over what is there": {
        "explain": True,
        "targets": {
            "llm.model.id": {"overwrite": True, "kinds": ["server", "client"], "max_length": 4},
            "llm.prompt.len": {"minimum": 1, "maximum": 40},
        },
    },
    "other types and bounds": {
        "targets": {
            "whole": {"type": "int", "sources": [{"attribute": ["a", "b"]}, {"query": "n"}]},
            "high": {"type": "int", "minimum": 2.5, "sources": [{"attribute": "a"}, {"query": "n"}]},
            "part": {"type": "double", "sources": [{"attribute": "a"}, {"header": "b"}]},
            "truth": {"type": "bool", "sources": [{"attribute": "a"}]},
            "text": {
                "type": "string",
                "max_length": 3,
                "sources": [{"attribute": "a"}, {"body": "model"}, {"attribute": "b"}, {"query": "n"}],
            },
        }
    },
}

odd_texts = st.sampled_from(
    [
        "",
        " ",
        "m",
        "tiny",
        "0",
        "7",
        "+7",
        " 8 ",
        "-3",
        "9.0",
        "9.5",
        "1e3",
        "٣",
        "9" * 30,
        "a\x00b",
        "65537",
        "\ud7ff",
    ]
)
texts = odd_texts | st.text(max_size=6)
bodies = st.sampled_from(
    [
        json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Grüße"}]}),
        '{"messages":[{"content":"cut off',
        '{"prompt": "\\ud83d\\ude00 \\n"}',
        '{"model": 1, "prompt": ["a", "bc"], "prompt": ""}',
        '{"messages":[{"type":"image","content":"no text"}]}',
        '["a"]',
        "{}",
        "plain text",
        " {}",
    ]
)
queries = st.sampled_from(
    [
        "batch_size=8",
        "batch_size=0",
        "n=5&batch_size=x",
        "batch_size=%37&n=%37",
        "a=1#batch_size=3",
        "batch_size=",
        "n=-1",
        "model=m",
    ]
)
values = (
    texts
    | bodies
    | st.integers(-2, 9)
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([1.0, 2.5, -1.0, 2.0**63, -(2.0**63), float("nan"), float("inf")])
    | st.booleans()
    | st.lists(texts | st.integers(0, 9), max_size=2)
    | st.binary(max_size=4)
    | bodies.map(str.encode)
)
KEYS = [
    "a",
    "b",
    "http.request.header.x-model-id",
    "http.request.header.x_model_id",
    "http.request.header.x-prompt-len",
    "http.request.header.b",
    "rpc.request.metadata.x-model-id",
    "gen_ai.request.model",
    "gen_ai.response.model",
    "llm.model_name",
    "llm.model.id",
    "llm.prompt.len",
    "gen_ai.input.messages",
    "url.path",
]
attributes = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(KEYS, values)
    | dict.fromkeys(("http.request.body", "request.body"), bodies | bodies.map(str.encode) | values)
    | dict.fromkeys(("url.query", "http.target"), queries | values)
    | {"http.url": queries.map("http://h/v1?{}".format) | values},
)
spans = st.lists(
    st.fixed_dictionaries({"attributes": attributes, "kind": st.integers(0, 7)}), min_size=1, max_size=5
)


def enriched(config, data, *, natively):
    """What leaves, and what was counted."""
    if natively:
        bridge = enriching(**config)
        assert any(target.natively for target in bridge.enrich._targets)
    else:
        with mock.patch.object(OwnSources, "compiled", return_value=None):
            bridge = enriching(**config)
    out = bridge.request(data)
    counts = {
        sample.name + str(sample.labels): sample.value
        for metric in (catalog.ENRICH_RESOLVED, catalog.ENRICH_BAD_VALUES, catalog.ENRICH_CONFLICTS)
        for family in bridge.telemetry.counter(metric).collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    return out, counts


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@given(spans=spans)
def test_native_and_python_sources_agree(config, spans):
    data = trace_request(spans)
    assert enriched(config, data, natively=True) == enriched(config, data, natively=False)


def test_a_slice_outside_the_data_is_empty():
    """No record can make the crate panic: it is read as a text of no bytes, which is absent."""
    record = bytearray(40)
    record[12:20] = (2**32 - 1).to_bytes(4, "little") * 2
    record[38] = 1
    sources = native.Sources(False, -9, 9, 9, [("attribute", 1, [0], b"", None)])
    assert sources.read(0, [], b"text", b"\0", bytes(record), [0, 1, 1, 1], b"\1") == (1, [], [])
    record[8:12] = (7).to_bytes(4, "little")  # a row beyond the spans
    assert sources.read(0, [], b"text", b"\0", bytes(record), [0, 1, 1, 1], b"\1") == (1, [], [])


def test_a_source_that_cannot_be_read_is_refused():
    with pytest.raises(ValueError, match="no way to read"):
        native.Sources(True, 0, 0, 0, [("json_text", 1, [0], b"", None)])
