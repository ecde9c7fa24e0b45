import pytest

from engine.cli import Serve, parse
from engine.errors import ConfigError
from engine.speculation.proposer import Ask
from engine.speculation.settings import Method, SpeculationSettings

NGRAM = '{"method": "ngram", "num_speculative_tokens": 4'


def test_vllms_keys_are_read() -> None:
    found = SpeculationSettings.parse(NGRAM + ', "prompt_lookup_max": 6, "prompt_lookup_min": 2}')
    assert found == SpeculationSettings(
        method=Method.NGRAM, tokens=4, lookup_max=6, lookup_min=2, model=None
    )
    found = SpeculationSettings.parse(
        '{"method": "eagle3", "model": "/heads/a", "num_speculative_tokens": 3}'
    )
    assert (found.method, found.model, found.tokens) == (Method.EAGLE3, "/heads/a", 3)


def test_one_end_of_the_look_up_is_the_others_default() -> None:
    found = SpeculationSettings.parse(NGRAM + ', "prompt_lookup_max": 3}')
    assert (found.lookup_min, found.lookup_max) == (3, 3)
    found = SpeculationSettings.parse(NGRAM + ', "prompt_lookup_min": 2, "model": "ngram"}')
    assert (found.lookup_min, found.lookup_max) == (2, 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ngram", "is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"num_speculative_tokens": 4}', "method is missing: one of ngram, draft_model, eagle3"),
        ('{"method": "medusa"}', "method 'medusa' is not known"),
        ('{"method": ["ngram"]}', "method ['ngram'] is not known"),
        ('{"method": "ngram"}', "num_speculative_tokens is missing"),
        (NGRAM + ', "draft_tensor_parallel_size": 1}', "draft_tensor_parallel_size is not known"),
        (NGRAM + ', "model": "/a"}', "model: ngram needs none"),
        ('{"method": "eagle3", "num_speculative_tokens": 1}', "model must name the checkpoint"),
        (NGRAM + ', "prompt_lookup_max": 2, "prompt_lookup_min": 3}', "must be at most"),
        (NGRAM + ', "prompt_lookup_max": 0}', "prompt_lookup_max 0 must be a whole number from 1"),
        ('{"method": "ngram", "num_speculative_tokens": 17}', "from 1 to 16"),
        ('{"method": "ngram", "num_speculative_tokens": true}', "num_speculative_tokens True"),
        ('{"method": "ngram", "num_speculative_tokens": 2.5}', "num_speculative_tokens 2.5"),
        (
            '{"method": "draft_model", "model": "/a", "num_speculative_tokens": 2,'
            ' "prompt_lookup_max": 3}',
            "prompt_lookup_max is for ngram",
        ),
    ],
)
def test_what_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SpeculationSettings.parse(text)
    assert says in str(caught.value)


def test_the_command_line_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["serve", "--model", "m", "--speculative-config"]
    served = parse([*command, NGRAM + "}"])
    assert isinstance(served, Serve)
    assert served.config.speculation == SpeculationSettings.parse(NGRAM + "}")
    with pytest.raises(SystemExit):
        parse([*command, '{"method": "medusa"}'])
    assert "argument --speculative-config: method 'medusa' is not known" in capsys.readouterr().err


def test_the_last_tokens_known_may_lie_in_the_prompt_and_after_it() -> None:
    ask = Ask(sequence=1, prompt=[1, 2, 3], output=[4, 5], most=2, pages=[])
    assert (ask.known, ask.last(2), ask.last(4), ask.last(5)) == (
        5, [4, 5], [2, 3, 4, 5], [1, 2, 3, 4, 5],
    )  # fmt: skip
