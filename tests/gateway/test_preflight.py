"""What is wrong with ports, paths and checkpoints is said before anything starts."""

import json
import socket
import threading
from pathlib import Path

import pytest

from gateway.cli import preflight
from gateway.cli.preflight import CannotServe, check_checkpoint, free_port, hold_data_dir


def checkpoint(folder: Path, **config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotServe, match=rf"--port {port} on 127.0.0.1: Address already in"):
            free_port("127.0.0.1", port, "--port")


def test_port_0_is_any_free_one():
    assert free_port("127.0.0.1", 0, "--port") > 0


def test_a_host_that_is_not_ours_is_named():
    with pytest.raises(CannotServe, match=r"192\.0\.2\.1"):
        free_port("192.0.2.1", 0, "--port")


def test_a_model_that_is_not_a_directory_is_refused(tmp_path: Path):
    with pytest.raises(CannotServe, match="is not a directory"):
        check_checkpoint(tmp_path / "org" / "model", "auto")


def test_a_directory_without_weights_is_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CannotServe, match="holds no"):
        check_checkpoint(tmp_path, "auto")


def test_a_config_that_is_not_json_is_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CannotServe, match=r"config\.json cannot be read"):
        check_checkpoint(tmp_path, "auto")


def test_a_checkpoint_stored_otherwise_than_asked_for_is_refused(tmp_path: Path):
    stored = checkpoint(tmp_path, quantization_config={"quant_method": "gptq"})
    check_checkpoint(stored, "auto")
    check_checkpoint(stored, "gptq")
    with pytest.raises(CannotServe, match=r"--quantization awq, but .* is stored as gptq"):
        check_checkpoint(stored, "awq")


@pytest.mark.parametrize(
    ("claim", "method"),
    [
        ({"bits": 4, "sym": True}, "gptq"),
        ({"w_bit": 4, "zero_point": True}, "awq"),
        ({"quant_method": "intel/auto-round"}, "auto-round"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
    ],
)
def test_how_a_checkpoint_is_stored_may_be_said_in_a_file_of_its_own(
    tmp_path: Path, claim: dict[str, object], method: str
):
    stored = checkpoint(tmp_path)
    check_checkpoint(stored, "none")
    (stored / "quantize_config.json").write_text(json.dumps(claim))
    check_checkpoint(stored, method)
    with pytest.raises(CannotServe, match=f"is stored as {method}"):
        check_checkpoint(stored, "none")


def test_a_config_that_is_no_object_is_refused(tmp_path: Path):
    checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CannotServe, match=r"config\.json is not a JSON object"):
        check_checkpoint(tmp_path, "awq")


def test_a_data_dir_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotServe, match="--data-dir"):
        preflight.make_data_dir(tmp_path / "file" / "data")


def test_one_data_dir_serves_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight, "LOCK_SECONDS", 0.0)
    with hold_data_dir(tmp_path):
        refused = []

        def second() -> None:
            try:
                with hold_data_dir(tmp_path):
                    pass
            except CannotServe as error:
                refused.append(str(error))

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        assert "in use by another server" in refused[0]
    with hold_data_dir(tmp_path):
        pass
