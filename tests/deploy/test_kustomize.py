"""Our way of rendering is Kustomize's, where a kubectl is at hand to say so."""

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.deploy.kustomize import Object, render
from tests.deploy.test_kubernetes import OVERLAYS, ROOT

HASHED = re.compile(r"\b(loratorio-(?:settings|picker))-[0-9a-z]{10}\b")


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubectl_renders_the_same(overlay: str):
    ran = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / overlay)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    theirs: list[Any] = list(yaml.safe_load_all(HASHED.sub(r"\1", ran.stdout)))
    ours = by_name(render(ROOT / overlay))
    assert by_name(theirs).keys() == ours.keys()
    for name, each in by_name(theirs).items():
        assert each == ours[name], name
