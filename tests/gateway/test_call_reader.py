"""Calls taken out of text, however the text is cut into pieces."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.inference.call_reader import BareReader, TaggedReader, overlap


def ids():
    count = itertools.count(1)
    return lambda: f"call_{next(count)}"


def tagged():
    return TaggedReader("<tool_call>", "</tool_call>", ids())


def bare(*names):
    return BareReader(frozenset(names or ("f", "g")), ids())


def read(reader, pieces):
    """Text shown, and calls as (name, arguments); on the way, the shape of every delta."""
    shown, calls = "", []
    for part in [*(reader.feed(piece) for piece in pieces), reader.flush()]:
        shown += part.text
        for delta in part.calls:
            if delta.id is not None:
                assert delta.index == len(calls)
                assert (delta.id, delta.arguments) == (f"call_{delta.index + 1}", "")
                calls.append((delta.name, ""))
            else:
                assert delta.index == len(calls) - 1
                assert delta.name is None
                assert delta.arguments
                name, arguments = calls[-1]
                calls[-1] = (name, arguments + delta.arguments)
    assert reader.called == bool(calls)
    return shown, calls


F = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
TAGGED = [
    ("", "", []),
    ("Hello, world!\n", "Hello, world!\n", []),
    (F, "", [("f", '{"x": 1}')]),
    (f"Let me see.\n{F}", "Let me see.", [("f", '{"x": 1}')]),
    (f"{F}\n{F.replace('1', '2')}", "", [("f", '{"x": 1}'), ("f", '{"x": 2}')]),
    (f"a {F} b {F} c", "a b c", [("f", '{"x": 1}'), ("f", '{"x": 1}')]),
    ("a < b <tool <tool_cal", "a < b <tool <tool_cal", []),
    ('<tool_call>{"name":"f","arguments":{}}</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"arguments": {"a": [1, "}"]}, "name": "f"}</tool_call>', "",
     [("f", '{"a": [1, "}"]}')]),
    ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"name": "f", "arguments": "{\\"x\\": \\"\\u00fc\\"}"}</tool_call>', "",
     [("f", '{"x": "ü"}')]),
    ('<tool_call>{"name": "f", "id": 7, "arguments": {"s": "</tool_call> \\" {"}}</tool_call>', "",
     [("f", '{"s": "</tool_call> \\" {"}')]),
    ('<tool_call>{"name": "f", "parameters": {"x": 1}, "more": [{}]}</tool_call>', "",
     [("f", '{"x": 1}')]),
    ("<tool_call>no json</tool_call> x", "<tool_call>no json</tool_call> x", []),
    ('<tool_call>{"nome": 1}</tool_call>', '<tool_call>{"nome": 1}</tool_call>', []),
    ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
    ('<tool_call>{"name": "f", "arguments": {"x": ', "", [("f", '{"x": ')]),
    ('<tool_call>{"name": "f", "arguments": {"x": 1}}', "", [("f", '{"x": 1}')]),
    ('<tool_call>{"na', '<tool_call>{"na', []),
    ('<tool_call>{"name": "f"}\n{"name": "g", "arguments": {"x": 1}}</tool_call> b', " b",
     [("f", "{}"), ("g", '{"x": 1}')]),
    ('<tool_call>{"name": "f"}, {"name": "g"};{"name": "f"}\n</tool_call>', "",
     [("f", "{}"), ("g", "{}"), ("f", "{}")]),
    ('<tool_call>{"name": "f"}{"nome": 1}</tool_call> b', '{"nome": 1} b', [("f", "{}")]),
    ('<tool_call>{"name": "f"} so {"name": "g"}</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"name": "f"}{"name": "g", "arguments": {"x": ', "",
     [("f", "{}"), ("g", '{"x": ')]),
    (f'{F[:-12]}{{"na', '{"na', [("f", '{"x": 1}')]),
    ("häßlich 中文 🙂" + F, "häßlich 中文 🙂", [("f", '{"x": 1}')]),
]  # fmt: skip
G = '{"name": "g", "parameters": {"y": {"z": []}}}'
BARE = [
    ("", "", []),
    ("Hello, world!\n", "Hello, world!\n", []),
    ("Use {braces} so.", "Use {braces} so.", []),
    (G, "", [("g", '{"y": {"z": []}}')]),
    (f"\n {G}", "", [("g", '{"y": {"z": []}}')]),
    (f"{G}; {G}", "", [("g", '{"y": {"z": []}}')] * 2),
    (f"{G}, {G}", "", [("g", '{"y": {"z": []}}')] * 2),
    (f"{G}\n{G}\n", "", [("g", '{"y": {"z": []}}')] * 2),
    ('{"name": "f", "arguments": {"x": 1}}', "", [("f", '{"x": 1}')]),
    ('{"name": "stranger", "parameters": {}}', '{"name": "stranger", "parameters": {}}', []),
    ('{"city": "Paris"}', '{"city": "Paris"}', []),
    ('{"x": 1, "name": "f"', "", [("f", "")]),
    ('{"a": 1} {"name": "f"}', '{"a": 1} {"name": "f"}', []),
    ("{not json", "{not json", []),
    ('{"name": "g", "parameters": {"y": ', "", [("g", '{"y": ')]),
    (f"{G} That is all.", "That is all.", [("g", '{"y": {"z": []}}')]),
]
CASES = [(tagged, *case) for case in TAGGED] + [(bare, *case) for case in BARE]


@pytest.mark.parametrize(("make", "text", "shown", "calls"), CASES, ids=range(len(CASES)))
def test_calls_are_read_whole_and_in_any_two_pieces(make, text, shown, calls):
    for cut in range(len(text) + 1):
        assert read(make(), [text[:cut], text[cut:]]) == (shown, calls), cut
    assert read(make(), list(text)) == (shown, calls)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_text_cut_anywhere_gives_the_same(data):
    bits = ["<tool_call>", "</tool_call>", '{"name": "f"', ', "arguments": {', '"x": "', '\\"',
            "}", "}}", "\n", " ", "<", "tool", "text", "; ", '{"a": [1]}', "🙂"]  # fmt: skip
    text = "".join(data.draw(st.lists(st.sampled_from(bits), max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    for make in (tagged, bare):
        assert read(make(), pieces) == read(make(), [text])


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(max_size=6), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8)), st.booleans())  # fmt: skip
def test_arguments_arrive_as_they_were_written(arguments, ascii_only):
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    call = f'{{"name": "f", "arguments": {written}}}'
    for reader, text in ((tagged(), f"<tool_call>{call}</tool_call>"), (bare(), call)):
        assert read(reader, [text[i : i + 3] for i in range(0, len(text), 3)]) == (
            "", [("f", written)],
        )  # fmt: skip


def test_arguments_come_in_pieces_while_they_are_written():
    reader = tagged()
    reader.feed('<tool_call>{"name": "f", "arguments": {')
    assert [d.arguments for d in reader.feed('"text": "one').calls] == ['"text": "one']
    assert [d.arguments for d in reader.feed(" two").calls] == [" two"]


def test_arguments_that_are_no_json_stay_as_they_were_written():
    for arguments in ('"\\ud83d"', "[" * 2000 + "]" * 2000, '"half', "NaN"):
        text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
        _, calls = read(tagged(), [text])
        assert calls[0][0] == "f"
        calls[0][1].encode()
        if arguments != '"half':
            assert calls[0][1] == arguments


def test_text_is_held_back_no_longer_than_it_could_be_a_tag():
    reader = tagged()
    assert reader.feed("a <tool").text == "a"
    assert reader.feed("box> b").text == " <toolbox> b"
    assert reader.feed("c").text == "c"


def test_long_arguments_take_time_that_grows_with_their_length_only():
    import time

    def seconds(count):
        text = '<tool_call>{"name": "f", "arguments": {"x": "' + "y" * count + '"}}</tool_call>'
        started = time.process_time()
        reader = tagged()
        for at in range(0, len(text), 64):
            reader.feed(text[at : at + 64])
        return time.process_time() - started

    seconds(1000)
    assert seconds(160_000) < 40 * seconds(10_000) + 0.5


@pytest.mark.parametrize(
    ("text", "length"), [("", 0), ("x", 0), ("x<", 1), ("<to", 3), ("<tool_call>", 0), ("<<t", 2)]
)
def test_overlap(text, length):
    assert overlap(text, "<tool_call>") == length
