"""Parts of uploads in a folder, which somebody else may let go at any moment."""

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from adapters.parts import DirectoryParts

UPLOAD = "upl_1"


def test_parts_that_are_let_go_while_they_are_listed_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As who asks for an upload's state finds it at the moment in which it is published."""
    parts, scandir = DirectoryParts(tmp_path), os.scandir
    parts.begin(UPLOAD)
    for name in ("adapter_config.json.1", "adapter_model.safetensors.1"):
        draft = parts.draft(UPLOAD)
        draft.write_bytes(b"abc")
        parts.put(UPLOAD, name, draft)
    assert set(parts.sizes(UPLOAD).values()) == {3}

    def let_go_meanwhile(folder: Path) -> nullcontext[list[os.DirEntry[str]]]:
        with scandir(folder) as entries:
            listed = list(entries)
        monkeypatch.setattr(os, "scandir", scandir)
        parts.discard(UPLOAD)
        return nullcontext(listed)

    monkeypatch.setattr(os, "scandir", let_go_meanwhile)
    assert parts.sizes(UPLOAD) == {}
    assert parts.sizes("upl_never") == {}
