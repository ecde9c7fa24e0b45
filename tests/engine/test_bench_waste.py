"""The empty end of the last page, by page size."""

import json

import pytest

from engine.bench.waste import Length, draw_lengths, main, waste


def test_waste_counts_every_step_of_a_sequence():
    assert waste([Length(1, 4)], 4) == pytest.approx(1 - (1 + 2 + 3 + 4) / 16)
    assert waste([Length(4, 4)], 4) == 0
    assert waste([Length(1, 1)], 16) == pytest.approx(15 / 16)


def test_pages_of_16_tokens_waste_at_most_4_percent():
    assert waste(draw_lengths(1000), 16) <= 0.04


def test_larger_pages_waste_more():
    lengths = draw_lengths(300, seed=1)
    shares = [waste(lengths, tokens) for tokens in (16, 32, 64, 128)]
    assert shares == sorted(shares)


def test_lengths_are_the_same_for_the_same_seed():
    assert draw_lengths(50, seed=3) == draw_lengths(50, seed=3)
    assert all(4 <= found.prompt < found.total <= 2048 for found in draw_lengths(200))


def test_the_command_prints_a_table_or_json(capsys):
    assert main(["--sequences", "20", "--page-tokens", "16"]) == 0
    assert "| 16 | " in capsys.readouterr().out
    assert main(["--sequences", "20", "--page-tokens", "16", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["16"]
