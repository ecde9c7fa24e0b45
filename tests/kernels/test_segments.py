import pytest

from kernels.segments import Segments


def table(segments):
    return list(
        zip(
            segments.start.tolist(),
            segments.length.tolist(),
            segments.adapter.tolist(),
            strict=True,
        )
    )


def test_adjacent_rows_of_one_adapter_are_one_segment():
    segments = Segments.of_rows([-1, 3, 3, 3, 0], "cpu")
    assert table(segments) == [(0, 1, -1), (1, 3, 3), (4, 1, 0)]
    assert segments.runs == tuple(table(segments))
    assert segments.longest == 3


def test_long_segments_are_cut_into_tiles():
    segments = Segments.of_rows([5] * 7 + [2], "cpu", tile=3)
    assert table(segments) == [(0, 3, 5), (3, 3, 5), (6, 1, 5), (7, 1, 2)]
    assert segments.longest == 3


def test_unused_entries_are_empty_and_belong_to_the_base_model():
    segments = Segments.of_rows([1], "cpu", capacity=3)
    assert table(segments) == [(0, 1, 1), (0, 0, -1), (0, 0, -1)]
    assert segments.runs == ((0, 1, 1),)


def test_no_rows_make_no_segments():
    segments = Segments.of_rows([], "cpu")
    assert table(segments) == []
    assert segments.longest == 0


def test_more_segments_than_entries_are_refused():
    with pytest.raises(ValueError, match="capacity"):
        Segments.of_rows([0, 1, 2], "cpu", capacity=2)
