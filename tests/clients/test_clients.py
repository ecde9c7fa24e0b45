"""Clients that people point at a server run unchanged, each in an environment of its own.

``make test-clients`` names where the environments lie in CLIENTS; without it there is none.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import Server
from tests.environments import environment

HERE = Path(__file__).parent
CACHE = os.environ.get("CLIENTS")
SECONDS = 600.0
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,unsupported_method"
STRICT = f"{CHECKS},response_schema_conformance,ignored_auth,negative_data_rejection"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(CACHE is None, reason="make test-clients runs these"),
]


def python(name: str) -> Path:
    cache = Path(CACHE or "").expanduser().resolve()
    cache.mkdir(parents=True, exist_ok=True)
    return environment(HERE / "requirements" / f"{name}.txt", cache)


def said(name: str, script: str, server: Server) -> dict[str, Any]:
    """The script's last line, once it has held every answer to what it wants."""
    command = [str(python(name)), str(HERE / script), str(server.data_dir / "ready.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(found)  # noqa: T201  the versions, for -s and -rP
    return found


def test_the_official_client_one_major_back(server: Server):
    assert said("openai-2", "talk_openai.py", server)["openai"].startswith("2.")


def test_langchain(server: Server):
    assert "Paris" in said("langchain", "talk_langchain.py", server)["said"]


def test_lm_eval_scores_a_base_and_an_adapter(server: Server):
    scores = said("lm-eval", "score_lm_eval.py", server)
    assert len(scores) == 3


@pytest.mark.parametrize(
    ("key", "paths", "checks"),
    [
        ("tenant", "^/(v1/(chat|completions|models)|tokeni|detokenize|healthz|readyz)", STRICT),
        ("tenant", "^/v1/(adapters|batches|embeddings|files|responses|load|unload)",
         "not_a_server_error"),
        ("admin", "^/v1/organization", "not_a_server_error"),
    ],
    ids=["inference", "resources", "administration"],
)  # fmt: skip
def test_no_request_that_the_description_allows_or_forbids_is_a_fault(
    server: Server, key: str, paths: str, checks: str
):
    """The last, for it deletes and revokes what it finds."""
    secret = server.tenant(1)["api_key"] if key == "tenant" else server.ready["admin_key"]
    origin = server.ready["base_url"].removesuffix("/v1")
    tool = python("schemathesis").parent / "schemathesis"
    done = subprocess.run(
        [
            *(str(tool), "run", f"{origin}/openapi.json", "-H", f"Authorization: Bearer {secret}"),
            *("--include-path-regex", paths, "--phases", "coverage,fuzzing", "-n", "10"),
            *("--seed", "1", "--checks", checks, "--request-timeout", "60"),
            *("--continue-on-failure", "--warnings", "off", "--no-color"),
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-6000:]
