"""Long commands say how far they are on a terminal, and leave nothing behind."""

import io

import pytest

from gateway.cli.progress import StepBar, Tally


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_shows_its_share_and_clears_its_line():
    stream = Terminal()
    bar = StepBar(stream, "days")
    bar.show(1, 4)
    assert " 25% 1 of 4 days" in stream.getvalue()
    bar.close()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_a_tally_shows_what_was_seen():
    stream = Terminal()
    Tally(stream, "requests seen").show(2000)
    assert "2000 requests seen" in stream.getvalue()


@pytest.mark.parametrize("kind", [StepBar, Tally])
def test_elsewhere_nothing_is_written(kind):
    stream = io.StringIO()
    bar = kind(stream, "days")
    bar.show(*([1, 2] if kind is StepBar else [1]))
    bar.close()
    assert stream.getvalue() == ""
