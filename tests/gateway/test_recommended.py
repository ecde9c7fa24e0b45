"""What a checkpoint recommends holds where a client says nothing."""

import json
from pathlib import Path

import pytest

from gateway.config import ConfigError
from gateway.inference.recommended import FILE, Recommended, read_recommended
from gateway.inference.wire import read_chat, read_completion

HELLO = [{"role": "user", "content": "Hi"}]
COOL = Recommended(temperature=0.2, top_p=0.9, top_k=40, min_p=0.1, repetition_penalty=1.1)


def written(folder: Path, text: str) -> Path:
    (folder / FILE).write_text(text, encoding="utf-8")
    return folder


def chosen(**said):
    return read_chat({"model": "m", "messages": HELLO, **said}, None, COOL).options.sampling


def test_a_checkpoint_without_the_file_recommends_what_openai_does(tmp_path):
    assert read_recommended(tmp_path) == Recommended()


def test_what_is_said_of_other_things_is_left_alone(tmp_path):
    said = {"temperature": 0.6, "top_k": -1, "do_sample": False, "eos_token_id": [1], "min_p": None}
    found = read_recommended(written(tmp_path, json.dumps(said)))
    assert found == Recommended(temperature=0.6)


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "\xff", '{"temperature": "hot"}', '{"temperature": 3}', '{"top_p": NaN}',
        '{"top_k": 1.5}', '{"min_p": true}', '{"repetition_penalty": 0}',
    ],
)  # fmt: skip
def test_what_nobody_could_sample_with_stops_the_start_by_name(tmp_path, text):
    with pytest.raises(ConfigError, match=FILE):
        read_recommended(written(tmp_path, text))


def test_where_a_client_says_nothing_the_recommended_holds():
    for sampling in (
        chosen(),
        chosen(temperature=None, top_p=None, top_k=None),
        read_completion({"model": "m", "prompt": "a"}, COOL).options.sampling,
    ):
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.2, 0.9, 40)
        assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.1)


def test_what_a_client_says_comes_first_field_by_field():
    sampling = chosen(temperature=1, top_k=-1)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1, 0.9, 0)
    assert chosen(temperature=0).temperature == 0
    assert chosen(top_p=0).temperature == 0
