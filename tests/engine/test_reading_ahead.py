"""A checkpoint's files are read whole, beside other things, where there is memory for them."""

import os

from engine.reading_ahead import BLOCK, ReadingAhead

SIZES = {"model-00001.safetensors": BLOCK + 17, "model-00002.safetensors": 5, "other.bin": 99}


def checkpoint(folder):
    for name, size in SIZES.items():
        (folder / name).write_bytes(bytes(size))
    return folder


def test_all_weights_are_read_and_nothing_else(tmp_path):
    with ReadingAhead(checkpoint(tmp_path), available=1 << 30) as reading:
        reading.join()
        assert reading.read == BLOCK + 17 + 5


def test_nothing_is_read_that_would_fill_the_memory(tmp_path):
    with ReadingAhead(checkpoint(tmp_path), available=BLOCK) as reading:
        reading.join()
        assert reading.read == 0


def test_leaving_does_not_wait_for_what_is_left(tmp_path):
    """A file that never ends: leaving ends the reading of it."""
    os.symlink("/dev/zero", tmp_path / "model.safetensors")
    with ReadingAhead(tmp_path, available=1 << 30) as reading:
        while reading.read < BLOCK:
            pass
    assert reading.read >= BLOCK
