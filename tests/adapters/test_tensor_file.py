"""Only a safetensors file whose every byte is accounted for is opened."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.errors import AdapterInvalid
from adapters.tensor_file import MAX_HEADER_BYTES, TensorFile
from tests.adapters.builders import frame, lora, pack_file

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(data)
    return path


def header(**tensors: object) -> bytes:
    return json.dumps(tensors).encode()


def test_reads_back_what_was_written(tmp_path):
    tensors = lora()
    with TensorFile.open(written(tmp_path, pack_file(tensors, {"format": "pt"}))) as file:
        for name, (dtype, shape, data) in tensors.items():
            info = file.tensors[name]
            assert (info.dtype, info.shape, bytes(file.read(info))) == (dtype, shape, data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(b"", "truncated", id="empty_file"),
        pytest.param(b"\x05\0\0", "truncated", id="shorter_than_its_length"),
        pytest.param((1 << 62).to_bytes(8, "little") + b"{}", "truncated", id="absurd_length"),
        pytest.param(pack_file(lora())[:-1], "end at byte", id="truncated_data"),
        pytest.param(pack_file(lora()) + b"\0", "end at byte", id="trailing_byte"),
        pytest.param(frame(b"{" + b" " * 99, b""), "padded", id="padding_after_garbage"),
        pytest.param(frame(header(a=ENTRY) + b" " * 4096, b"\0" * 8), "padded", id="padded"),
        pytest.param(frame(b" " * (MAX_HEADER_BYTES + 8), b""), "header of", id="oversized_header"),
        pytest.param(frame(b"[1]", b""), "not a JSON object", id="header_is_a_list"),
        pytest.param(frame(b"\xff\xfe{}", b""), "not valid JSON", id="not_utf8"),
        pytest.param(frame(b"[" * 100_000, b""), "not valid JSON", id="deep_nesting"),
        pytest.param(frame(b"1" * 9_000, b""), "not valid JSON", id="endless_integer"),
        pytest.param(
            frame(b'{"a":%b,"a":%b}' % ((json.dumps(ENTRY).encode(),) * 2), b"\0" * 8),
            "duplicate name a",
            id="duplicate_key",
        ),
        pytest.param(
            frame(b'{"a":{"dtype":"F32","dtype":"F16","shape":[],"data_offsets":[0,4]}}', b"0000"),
            "duplicate name dtype",
            id="duplicate_field",
        ),
        pytest.param(
            frame(header(a=ENTRY, b=ENTRY), b"\0" * 8), "overlaps", id="overlapping_tensors"
        ),
        pytest.param(
            frame(header(a=ENTRY | {"data_offsets": [8, 16]}), b"\0" * 16), "gap", id="gap"
        ),
        pytest.param(
            frame(header(a=ENTRY | {"shape": [3]}), b"\0" * 8), "does not fill", id="wrong_size"
        ),
        pytest.param(
            frame(header(a=ENTRY | {"shape": [1 << 40, 0]}), b""), "too large", id="huge_dimension"
        ),
        pytest.param(
            frame(header(a=ENTRY | {"shape": [-1, -2]}), b"\0" * 8), "non-negative", id="negative"
        ),
        pytest.param(
            frame(header(a=ENTRY | {"shape": [True, 2]}), b"\0" * 8), "integers", id="bool_extent"
        ),
        pytest.param(
            frame(header(a=ENTRY | {"data_offsets": [0, 8, 8]}), b"\0" * 8), "lists", id="offsets"
        ),
        pytest.param(
            frame(header(a=ENTRY | {"dtype": "F4"}), b"\0" * 8), "unknown dtype", id="dtype"
        ),
        pytest.param(frame(header(a=ENTRY | {"x": 1}), b"\0" * 8), "entry needs", id="more_fields"),
        pytest.param(frame(header(a=7), b""), "entry needs", id="entry_is_a_number"),
        pytest.param(frame(b" {}", b""), "not a JSON object", id="begins_with_a_space"),
        pytest.param(frame(b"\xef\xbb\xbf{}", b""), "not valid JSON", id="byte_order_mark"),
        pytest.param(frame("{}  ".encode("utf-16-le"), b""), "not valid JSON", id="utf16"),
        pytest.param(frame(header(__metadata__={"a": 1}), b""), "object of strings", id="metadata"),
        pytest.param(frame(header(__metadata__=[1]), b""), "object of strings", id="notes_in_list"),
    ],
)
def test_refuses_unsound_files(tmp_path, data, said):
    with pytest.raises(AdapterInvalid, match=said):
        TensorFile.open(written(tmp_path, data))


def test_refuses_more_tensors_than_the_limit(tmp_path):
    path = written(tmp_path, pack_file(lora(0) | lora(1)))
    with pytest.raises(AdapterInvalid, match="4 tensors, more than 3"):
        TensorFile.open(path, max_tensors=3)


def test_refuses_symlinks_and_special_files(tmp_path):
    target = written(tmp_path, pack_file(lora()))
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    os.mkfifo(pipe)
    with pytest.raises(AdapterInvalid, match="symbolic link"):
        TensorFile.open(link)
    with pytest.raises(AdapterInvalid, match="not a regular file"):
        TensorFile.open(pipe)
    with pytest.raises(AdapterInvalid, match="not a regular file"):
        TensorFile.open(tmp_path)
    with pytest.raises(AdapterInvalid, match="not found"):
        TensorFile.open(tmp_path / "nothing")
    TensorFile.open(link, follow_symlinks=True).close()


def test_a_file_that_shrinks_while_open_is_an_error(tmp_path):
    path = written(tmp_path, pack_file(lora()))
    with TensorFile.open(path) as file:
        os.truncate(path, path.stat().st_size - 8)
        last = max(file.tensors.values(), key=lambda tensor: tensor.start)
        with pytest.raises(AdapterInvalid, match="ends inside"):
            file.read(last)


@given(noise=st.binary(max_size=200), at=st.integers(0, 400))
def test_noise_anywhere_is_a_refusal_or_a_sound_file(tmp_path_factory, noise, at):
    data = bytearray(pack_file(lora()))
    data[at : at + len(noise)] = noise
    path = written(tmp_path_factory.mktemp("noise"), bytes(data))
    try:
        file = TensorFile.open(path)
    except AdapterInvalid:
        return
    with file:
        assert sum(len(file.read(tensor)) for tensor in file.tensors.values()) < len(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    fields=st.fixed_dictionaries(
        {},
        optional={
            "dtype": json_values | st.sampled_from(["F32", "F16", "I8"]),
            "shape": json_values | st.lists(st.integers(0, 4), max_size=3),
            "data_offsets": json_values | st.lists(st.integers(0, 64), min_size=2, max_size=2),
        },
    ),
    body=st.binary(max_size=64),
)
def test_any_header_entry_is_a_refusal_or_a_sound_file(tmp_path_factory, fields, body):
    path = written(tmp_path_factory.mktemp("entry"), frame(header(a=fields), body))
    try:
        file = TensorFile.open(path)
    except AdapterInvalid:
        return
    with file:
        assert file.tensors["a"].nbytes == len(body)
