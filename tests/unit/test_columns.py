"""The kernels: native against reference on anything, both against the standard library on what is valid."""

from __future__ import annotations

import json
from urllib.parse import parse_qsl, quote_plus

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge import columns, columns_reference
from otel_bridge.columns import (
    MALFORMED,
    MATCH,
    NO_MATCH,
    JsonPaths,
    JsonType,
    KeyPatterns,
    Lineage,
    Parsed,
    Words,
)
from otel_bridge.testing import any_value

native = pytest.importorskip("otel_bridge._native.wire", reason="the native crate is not installed")
if not hasattr(native, "JsonPaths"):
    pytest.skip("the installed native crate is older than this source", allow_module_level=True)

PATHS = ["", "model", "messages[*].content", "messages[*].content[*].text", "prompt[*]", "a.b", "[*][*]"]


def column(texts):
    """Texts back to back, with their offsets and lengths."""
    pieces = [text.encode() if isinstance(text, str) else text for text in texts]
    lens = np.array([len(piece) for piece in pieces], "<u4")
    offs = (np.cumsum(lens) - lens).astype("<u4")
    return b"".join(pieces), offs, lens


def raw(texts):
    data, offs, lens = column(texts)
    return data, offs.tobytes(), lens.tobytes()


def slice_of(data, match):
    return data[match["off"] : match["off"] + match["len"]]


# Native and reference agree on anything

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["model", "messages", "content", "text", "type", "prompt", "a", "b"]) | st.text(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.text(max_size=3)},
        optional={
            "content": st.text()
            | st.lists(
                st.fixed_dictionaries({"type": st.sampled_from(["text", "blob"]), "text": st.text()}),
                max_size=3,
            ),
            "type": st.sampled_from(["blob", "text"]),
        },
    ),
    max_size=4,
)
documents = json_values | st.fixed_dictionaries({"model": st.text(), "messages": messages})


@st.composite
def json_texts(draw):
    """JSON, written in one of the ways serialisers have, and often damaged."""
    text = json.dumps(
        draw(documents),
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])),
    )
    damage = draw(st.sampled_from(["none", "none", "cut", "replace"]))
    at = draw(st.integers(0, max(len(text) - 1, 0)))
    if damage == "cut":
        return text[:at]
    if damage == "replace":
        return (
            text[:at]
            + draw(st.sampled_from(['"', "\\", "{", "]", ",", ":", "1", ".", "e", "\\ud800", " "]))
            + text[at + 1 :]
        )
    return text


@given(st.lists(json_texts() | st.text(), max_size=5))
def test_json_paths_agree(texts):
    args = raw(texts)
    ours, theirs = native.JsonPaths(PATHS, ["blob"]), columns_reference.JsonPaths(PATHS, ["blob"])
    assert ours.text_bytes(*args) == theirs.text_bytes(*args)
    assert ours.find(*args) == theirs.find(*args)


@given(st.lists(documents, max_size=5))
def test_any_value_paths_agree(values):
    ours, theirs = native.JsonPaths(PATHS, ["blob"]), columns_reference.JsonPaths(PATHS, ["blob"])
    for kind, kvlist in ((dict, True), (list, False)):
        which = "kvlist_value" if kvlist else "array_value"
        args = raw([encoded(value, which) for value in values if isinstance(value, kind)])
        assert ours.any_value_bytes(*args, kvlist) == theirs.any_value_bytes(*args, kvlist)


def encoded(value, which):
    def small(item):
        if isinstance(item, int) and not isinstance(item, bool):
            return item % 2**63
        if isinstance(item, dict):
            return {key: small(one) for key, one in item.items()}
        return [small(one) for one in item] if isinstance(item, list) else item

    return getattr(any_value(small(value)), which).SerializeToString()


numbers = (
    st.integers(-(2**65), 2**65).map(str)
    | st.floats().map(str)
    | st.text(alphabet="0123456789+-.eE µnms \t_", max_size=12)
    | st.builds("{}{}".format, st.floats(0, 1e6), st.sampled_from(["ns", "us", "µs", "μs", "ms", "s", "h"]))
)


@given(st.lists(numbers, max_size=8))
def test_numbers_agree(texts):
    args = raw(texts)
    assert native.parse_int(*args) == columns_reference.parse_int(*args)
    for durations in (False, True):
        assert native.parse_double(*args, durations) == columns_reference.parse_double(*args, durations)


queries = st.lists(
    st.tuples(
        st.sampled_from(["batch_size", "batch%5Fsize", "batch+size", "model", ""]),
        numbers | st.text(max_size=5),
    ),
    max_size=4,
).map(lambda pairs: "&".join(f"{key}={value}" for key, value in pairs))
urls = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "/v1/chat", "http://h:80/p", "?", "a#b"]),
    st.sampled_from(["", "?", "#", "&"]),
    queries | st.text(alphabet="ab=&%25#?+", max_size=12),
)


@given(st.lists(urls, max_size=5), st.sampled_from(["batch_size", "batch size", "model", ""]), st.booleans())
def test_query_parameters_agree(texts, name, bare):
    args = (*raw(texts), name.encode(), bare)
    assert native.query_param(*args) == columns_reference.query_param(*args)
    assert native.query_int(*args) == columns_reference.query_int(*args)


@given(
    st.lists(st.lists(st.text(max_size=4) | st.integers(0, 9) | st.none(), max_size=4), max_size=5), st.data()
)
def test_first_text_agrees(lists, data):
    pieces = [any_value(items).array_value.SerializeToString() for items in lists]
    if pieces and data.draw(st.booleans()):
        pieces[0] = pieces[0][: data.draw(st.integers(0, len(pieces[0])))]
    args = raw(pieces)
    assert native.first_text(*args) == columns_reference.first_text(*args)


@given(
    st.lists(st.sampled_from(["chat", "OpenAI", "/v1/chat/completions", "/v1", "", "Ärger"]), max_size=4),
    st.lists(
        st.sampled_from(["openai", "CHAT", "http://h/v1/chat/completions/?a#b", "chatcmpl", "ärger"])
        | st.text()
    ),
    st.sampled_from(["verbatim", "exact", "prefix", "path_end"]),
)
def test_words_agree(words, texts, mode):
    listed = [word.encode() for word in words]
    args = raw(texts)
    assert native.Words(listed, mode).lookup(*args) == columns_reference.Words(listed, mode).lookup(*args)


@given(
    st.lists(
        st.from_regex(r"(llm\.)?prompts?\.[0-9]{0,12}\.(prompt\.text|x\.[0-9]+)?", fullmatch=True)
        | st.text(),
        max_size=6,
    )
)
def test_key_patterns_agree(keys):
    patterns = [b"llm.prompts.#.prompt.text", b"prompt.#.x.#", b"prompt.#.", b"#"]
    args = raw(keys)
    assert native.KeyPatterns(patterns).lookup(*args) == columns_reference.KeyPatterns(patterns).lookup(*args)


@given(
    st.lists(st.tuples(st.sampled_from(["OpenAI", "openai", "ä", "Ä", ""]), st.text(max_size=2)), max_size=6)
)
def test_same_text_agrees(pairs):
    ours, theirs = raw([one for one, _ in pairs]), raw([other or "OPENAI" for _, other in pairs])
    shifted = (np.frombuffer(theirs[1], "<u4") + np.uint32(len(ours[0]))).astype("<u4").tobytes()
    args = (ours[0] + theirs[0], ours[1], ours[2], shifted, theirs[2])
    assert native.same_text(*args) == columns_reference.same_text(*args)


ids = st.integers(0, 5)


@given(
    st.lists(st.tuples(ids, ids, ids, st.sampled_from(["", "tiny", "x" * 600])), max_size=20),
    st.integers(1, 12),
)
def test_lineage_agrees(spans, capacity):
    ours, theirs = native.Lineage(capacity), columns_reference.Lineage(capacity)
    traces = b"".join(bytes(15) + bytes([trace]) for trace, *_ in spans)
    own = b"".join(bytes(7) + bytes([span]) for _, span, *_ in spans)
    parents = b"".join(bytes(7) + bytes([parent]) for _, _, parent, _ in spans)
    names = raw([f"id-{span}" for _, span, *_ in spans])
    values = raw([value for *_, value in spans])
    joined = names[0] + values[0]
    shifted = (np.frombuffer(values[1], "<u4") + np.uint32(len(names[0]))).astype("<u4").tobytes()
    wanted = raw([f"id-{number}" for number in range(6)] + ["id-1-0", "id-2_12", "id-3-", "-1", ""])
    for memory in (ours, theirs):
        memory.remember(traces, own, parents, joined, shifted, values[2])
        memory.remember_ids(joined, names[1], names[2], shifted, values[2])
    assert len(ours) == len(theirs)
    for hops in (0, 1, 3, 16):
        assert ours.ancestors(traces, parents, hops) == theirs.ancestors(traces, parents, hops)
    assert ours.counterparts(*wanted) == theirs.counterparts(*wanted)


@given(
    st.binary(max_size=40),
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), max_size=5),
)
def test_slices_outside_the_data_read_as_empty(data, places):
    offs, lens = (np.array([place[side] for place in places], "<u4") for side in (0, 1))
    assert len(columns.parse_int(data, offs, lens)[0]) == len(places)
    assert len(columns.first_text(data, offs, lens)) == len(places)


# And they are right: the standard library decides


@given(documents, st.booleans())
def test_text_bytes_is_what_json_loads_would_count(document, escaped):
    text = json.dumps(document, ensure_ascii=escaped)
    data, offs, lens = column([text])
    found = JsonPaths(["messages[*].content", "messages[*].content[*].text"]).text_bytes(data, offs, lens)
    texts = []
    for message in listed(mapped(json.loads(text)).get("messages")):
        content = mapped(message).get("content")
        texts += (
            [content] if isinstance(content, str) else [mapped(part).get("text") for part in listed(content)]
        )
    sizes = [len(one.encode()) for one in texts if isinstance(one, str)]
    assert found[0] == (sum(sizes) if sizes else NO_MATCH)


def mapped(value):
    return value if isinstance(value, dict) else {}


def listed(value):
    return value if isinstance(value, list) else []


@given(st.text(), st.booleans())
def test_find_gives_the_slice_of_a_string(model, escaped):
    data, offs, lens = column(["pad", json.dumps({"n": 1, "model": model}, ensure_ascii=escaped)])
    (match,) = JsonPaths(["model"]).find(data, offs[1:], lens[1:])[0]
    assert match["type"] == JsonType.STRING
    assert json.loads(b'"' + slice_of(data, match) + b'"') == model


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=4), st.text(min_size=1, max_size=4)), min_size=1, max_size=4
    )
)
def test_the_first_of_repeated_parameters_wins(pairs):
    query = "&".join(f"{quote_plus(key)}={quote_plus(value)}" for key, value in pairs)
    data, offs, lens = column(["/path?" + query + "#end"])
    for name, _ in pairs:
        match = columns.query_param(data, offs, lens, name)[0]
        expected = next(value for key, value in parse_qsl(query) if key == name)
        assert parse_qsl("x=" + slice_of(data, match).decode())[0][1] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'{"a":"\u00fc"}', 2),
        (r'{"a":"\ud83d\ude00"}', 4),
        (r'{"a":"\ud83d"}', 3),
        (r'{"a":"\ude00\ud83d"}', 6),
        (r'{"a":"\n\"\\\/"}', 4),
        ('{"a":"日本語"}', 9),
        ('{"a":""}', 0),
        ('{"a":null}', NO_MATCH),
        ('{"a":7}', NO_MATCH),
        ("[]", NO_MATCH),
        ('{"a":"b"', MALFORMED),
        ('{"a":"b"}}', MALFORMED),
        (r'{"a":"\x"}', MALFORMED),
        (r'{"a":"\u12g4"}', MALFORMED),
        ("", MALFORMED),
        ("plain text", MALFORMED),
        ("[" * 129 + "]" * 129, MALFORMED),
        ("[" * 128 + "]" * 128, NO_MATCH),
        ('{"a":"b","a":"cd"}', 3),
        ('{"\\u0061":"b"}', 1),
    ],
)
def test_text_bytes_at_the_edges(text, expected):
    assert JsonPaths(["a"]).text_bytes(*column([text]))[0] == expected


def test_a_blob_is_no_text_wherever_its_type_stands():
    paths = JsonPaths(["[*].parts[*].content"], unless_type=["blob"])
    text = '[{"parts":[{"content":"QUJD","type":"blob"},{"type":"text","content":"ab"}]}]'
    assert paths.text_bytes(*column([text]))[0] == 2


def test_find_reads_what_stands_before_a_break():
    data, offs, lens = column(['{"model":"tiny","n":12'])
    matches = JsonPaths(["model", "n", "other"]).find(data, offs, lens)[0]
    assert slice_of(data, matches[0]) == b"tiny"
    # The number may have lost digits.
    assert list(matches["type"]) == [JsonType.STRING, JsonType.NONE, JsonType.NONE]


@pytest.mark.parametrize(
    ("text", "value", "state"),
    [
        (" 12 ", 12, Parsed.OK),
        ("-3", -3, Parsed.OK),
        ("57.0", 57, Parsed.OK),
        ("9223372036854775807", 2**63 - 1, Parsed.OK),
        ("9223372036854775808", 0, Parsed.OUT_OF_RANGE),
        ("", 0, Parsed.ABSENT),
        ("1.5", 0, Parsed.NOT_A_NUMBER),
        ("1e3", 0, Parsed.NOT_A_NUMBER),
        ("1_000", 0, Parsed.NOT_A_NUMBER),
        ("١٢", 0, Parsed.NOT_A_NUMBER),
    ],
)
def test_parse_int(text, value, state):
    values, states = columns.parse_int(*column([text]))
    assert (values[0], states[0]) == (value, state)


@pytest.mark.parametrize(
    ("text", "value", "state"),
    [
        ("1.2ms", 0.0012, Parsed.OK),
        ("450µs", 450e-6, Parsed.OK),
        ("450μs", 450e-6, Parsed.OK),
        ("12ns", 12e-9, Parsed.OK),
        ("3s", 3.0, Parsed.OK),
        ("0.25", 0.25, Parsed.OK),
        ("1e400", 0.0, Parsed.OUT_OF_RANGE),
        ("nan", 0.0, Parsed.NOT_A_NUMBER),
        ("s", 0.0, Parsed.NOT_A_NUMBER),
    ],
)
def test_parse_durations(text, value, state):
    values, states = columns.parse_double(*column([text]), durations=True)
    assert values[0] == pytest.approx(value)
    assert states[0] == state


@pytest.mark.parametrize(
    ("text", "bare", "value", "state"),
    [
        ("/v1?batch_size=8", False, 8, Parsed.OK),
        ("http://h/p?a=1&batch_size=8&batch_size=9#f", False, 8, Parsed.OK),
        ("batch_size=%38", True, 8, Parsed.OK),
        ("?batch_size=+8", True, 8, Parsed.OK),
        ("/v1#?batch_size=8", False, 0, Parsed.ABSENT),
        ("/v1/batch_size=8", False, 0, Parsed.ABSENT),
        ("batch_size", True, 0, Parsed.ABSENT),
        ("batch_size=eight", True, 0, Parsed.NOT_A_NUMBER),
    ],
)
def test_query_int(text, bare, value, state):
    values, states = columns.query_int(*column([text]), "batch_size", bare=bare)
    assert (values[0], states[0]) == (value, state)


def test_a_path_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"a\[0\]"):
        JsonPaths(["a[0]"])


def test_words_and_key_patterns_give_the_first_that_fits():
    assert list(Words(["openai", "azure"]).lookup(*column(["OpenAI", "other", "AZURE"]))) == [0, -1, 1]
    ends = Words(["/chat/completions", "/completions"], "path_end")
    urls = ["http://h/v1/chat/completions?x=1", "/v1/completions/", "/v1/models"]
    assert list(ends.lookup(*column(urls))) == [0, 1, -1]
    keys = KeyPatterns(["llm.input_messages.#.message.content"])
    given_keys = ["llm.input_messages.4000000000.message.content", "llm.input_messages..message.content"]
    assert list(keys.lookup(*column(given_keys))) == [0, -1]


def test_same_text_ignores_ascii_case_only():
    data, offs, lens = column(["OpenAI", "openai", "Ä", "ä"])
    assert list(columns.same_text(data, offs[:3:2], lens[:3:2], offs[1::2], lens[1::2])) == [True, False]


def test_first_text_of_an_array():
    data, offs, lens = column([any_value([3, "tiny", "other"]).array_value.SerializeToString(), b""])
    found = columns.first_text(data, offs, lens)
    assert slice_of(data, found[0]) == b"tiny"
    assert found[1]["type"] == JsonType.NONE


def test_records_are_laid_out_as_the_native_crate_writes_them():
    assert MATCH.itemsize == 12


def test_lineage_forgets_the_oldest():
    memory = Lineage(100)
    from otel_bridge.batch import SPAN

    spans = np.zeros(1000, SPAN)
    spans["span_id"] = np.frombuffer(b"".join(number.to_bytes(8, "big") for number in range(1, 1001)), "V8")
    zeros = np.zeros(1000, "<u4")
    memory.remember(spans, b"tiny", zeros, zeros + np.uint32(4))
    assert 50 <= len(memory) <= 100
    children = np.zeros(2, SPAN)
    children["parent_id"] = [np.void((1000).to_bytes(8, "big")), np.void((1).to_bytes(8, "big"))]
    texts, found = memory.ancestors(children, np.arange(2), 1)
    assert [slice_of(texts, one) for one in found] == [b"tiny", b""]
