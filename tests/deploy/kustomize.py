"""As much of Kustomize as our manifests use, so that they are checked where there is no kubectl.

Resources, components, generated config maps (without the hash in their names), JSON patches,
labels, images and the namespace; anything else is refused. Where kubectl is, a test compares the
two.
"""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
KNOWN = {
    "apiVersion", "kind", "namespace", "labels", "resources", "components", "configMapGenerator",
    "images", "patches",
}  # fmt: skip
CLUSTERWIDE = {"Namespace"}


def render(folder: Path) -> list[Object]:
    return _apply(folder, [])


def _apply(folder: Path, given: list[Object]) -> list[Object]:
    said = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert said.keys() <= KNOWN, said.keys() - KNOWN
    objects = given
    for name in said.get("resources", []):
        path = folder / name
        objects = objects + (render(path) if path.is_dir() else _documents(path))
    for name in said.get("components", []):
        objects = _apply(folder / name, objects)
    for generator in said.get("configMapGenerator", []):
        _generate(folder, generator, objects)
    for patch in said.get("patches", []):
        _patch(folder, patch, objects)
    for each in objects:
        for label in said.get("labels", []):
            _label(each, label)
        if "namespace" in said:
            _place(each, said["namespace"])
        for image in said.get("images", []):
            for container in containers(each):
                if container["image"] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
    return objects


def _documents(file: Path) -> list[Object]:
    return [each for each in yaml.safe_load_all(file.read_text()) if each]


def _generate(folder: Path, said: Object, objects: list[Object]) -> None:
    assert said.keys() <= {"name", "behavior", "files"}, said
    data = {name: (folder / name).read_text() for name in said["files"]}
    found = [
        o for o in objects if (o["kind"], o["metadata"]["name"]) == ("ConfigMap", said["name"])
    ]
    if said.get("behavior", "create") == "merge":
        (old,) = found
        old["data"] |= data
        return
    assert not found
    metadata = {"name": said["name"]}
    objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def _patch(folder: Path, said: Object, objects: list[Object]) -> None:
    assert said.keys() == {"path", "target"}
    wanted = said["target"]["kind"], said["target"]["name"]
    (one,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == wanted]
    for change in yaml.safe_load((folder / said["path"]).read_text()):
        *way, last = change["path"].strip("/").split("/")
        place: Any = one
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if change["op"] == "remove":
            del place[last]
            continue
        value = deepcopy(change["value"])
        if isinstance(place, dict):
            assert (last in place) == (change["op"] == "replace"), change
            place[last] = value
        elif last == "-":
            place.append(value)
        else:
            assert change["op"] == "replace", change
            place[int(last)] = value


def _label(one: Object, said: Object) -> None:
    assert said.keys() == {"pairs", "includeTemplates"}
    places = [one, *templates(one), *one.get("spec", {}).get("volumeClaimTemplates", [])]
    for place in places:
        place.setdefault("metadata", {}).setdefault("labels", {}).update(said["pairs"])


def _place(one: Object, namespace: str) -> None:
    if one["kind"] not in CLUSTERWIDE:
        one["metadata"]["namespace"] = namespace
    for subject in one.get("subjects", []):
        subject["namespace"] = namespace


def templates(one: Object) -> list[Object]:
    """Of pods."""
    if one["kind"] in ("StatefulSet", "Deployment", "Job"):
        return [one["spec"]["template"]]
    return []


def containers(one: Object) -> Iterator[Object]:
    """Of every kind, in the order in which they start."""
    for template in templates(one):
        yield from template["spec"].get("initContainers", [])
        yield from template["spec"]["containers"]
