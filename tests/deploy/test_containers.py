"""Container files and compose, as far as no daemon is needed: no line of them is taken on trust."""

import json
import os
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from compose_spec import PyCompose

from engine.cli import Serve, parse
from gateway.cli.main import build_parser
from gateway.config import Settings
from tests.deploy.images import DEPLOY, ROOT, Image

IMAGES = ("engine", "gateway")
COMPOSE = (DEPLOY / "compose.yaml").read_text()
SERVICES = yaml.safe_load(COMPOSE)["services"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module", params=IMAGES)
def image(request: pytest.FixtureRequest) -> Image:
    return Image.read(request.param)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One tree for both: they copy the same."""
    assert Image.read("engine").sources == Image.read("gateway").sources
    return Image.read("gateway").install(tmp_path_factory.mktemp("image"))


def test_the_linter_finds_nothing(image: Image):
    linter = Path(sys.executable).parent / "hadolint"
    ran = subprocess.run([linter, "--no-color", image.file], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "")


def test_all_that_is_copied_is_there_and_not_ignored(image: Image):
    ignored = (ROOT / ".dockerignore").read_text().split()
    for name in image.sources:
        assert (ROOT / name).exists(), name
        assert not any(fnmatch(name, pattern) for pattern in ignored), name


def test_the_extras_that_are_installed_exist(image: Image):
    extras = image.installed.removeprefix(".[").removesuffix("]").split(",")
    assert set(extras) <= PROJECT["project"]["optional-dependencies"].keys()


def test_nothing_of_our_packages_is_missing_from_an_image(installed: Path):
    tracked = subprocess.run(
        ["git", "ls-files", "gateway", "engine", "kernels", "adapters", "migrations"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    documents = {name for name in tracked if name.endswith(".md")}
    missing = [name for name in tracked if not (installed / name).exists()]
    assert set(missing) <= documents


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "gateway", "serve", "--help"],
        ["-m", "engine", "demo", "--help"],
        ["-m", "gateway.cli.main", "prepare", "--help"],
    ],
    ids=lambda command: command[1],
)
def test_what_was_installed_starts(installed: Path, tmp_path: Path, command: list[str]):
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(installed)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "usage:" in ran.stdout


def test_the_engines_default_arguments_are_arguments_and_its_ports_are_exposed():
    image = Image.read("engine")
    assert image.command[:3] == ["python", "-m", "engine"]
    parsed = parse(image.command[3:])
    assert isinstance(parsed, Serve)
    port = parsed.config.listen.rpartition(":")[2]
    assert image.last("EXPOSE").split() == [port, str(parsed.config.metrics_port)]


def test_compose_is_what_its_specification_says():
    merged = yaml.safe_load(COMPOSE)  # it knows no merge keys; Compose resolves them first
    PyCompose.from_yaml(yaml.safe_dump(merged)).validate()


def test_compose_builds_every_image_of_ours_and_mounts_what_is_there():
    built = {s["image"] for s in SERVICES.values() if "build" in s}
    assert built == {f"loratorio-{name}" for name in IMAGES}
    for name, service in SERVICES.items():
        if service["image"].startswith("loratorio-"):
            assert service["image"] in built, name
        if build := service.get("build"):
            context = DEPLOY / build["context"]
            assert (context / build["dockerfile"]).is_file(), name
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), name


def test_the_gateways_settings_in_compose_are_settings_that_fit_the_engine():
    content = yaml.safe_load(COMPOSE)["configs"]["gateway"]["content"]
    settings = Settings.from_json(content.replace("${POSTGRES_PASSWORD}", "secret").encode())
    image = Image.read("gateway")
    assert image.last("EXPOSE").split() == [str(settings.port), str(settings.metrics_port)]
    assert settings.engines == (f"tcp:engine:{Image.read('engine').last('EXPOSE').split()[0]}",)
    (mounted,) = SERVICES["gateway"]["configs"]
    assert image.command[-1] == mounted["target"]


def test_our_services_run_locked_and_write_in_their_volumes_alone():
    for name, service in SERVICES.items():
        if service["image"].startswith("loratorio-"):
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name
            assert service["tmpfs"] == [service["environment"]["HOME"]], name
    for kind in IMAGES:
        assert Image.read(kind).last("USER") == "10001"


def test_commands_of_the_operator_find_the_servers_settings():
    (mounted,) = SERVICES["gateway"]["configs"]
    for name in ("prepare", "admin"):
        said = " ".join([*SERVICES[name]["entrypoint"], *SERVICES[name].get("command", [])])
        assert f"--settings={mounted['target']}" in said
    words = SERVICES["prepare"]["command"]
    assert build_parser("prepare").parse_args(words).model == Path("/models/base")


def test_grafana_finds_prometheus_and_our_dashboards():
    folder, mounts = (
        DEPLOY / "grafana",
        dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"]),
    )
    (source,) = yaml.safe_load((folder / "provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((folder / "provisioning/dashboards/loratorio.yaml").read_text())[
        "providers"
    ]
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert len(list((folder / "dashboards").glob("*.json"))) >= 2


def test_prometheus_reads_our_alerts():
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["prometheus"]["volumes"])
    for name in config["rule_files"]:
        assert mounts[f"./prometheus/{name}"] == f"/etc/prometheus/{name}"


def test_prometheus_asks_the_services_that_compose_starts():
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    targets = {
        target
        for job in config["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    }
    exposed = {f"{name}:{Image.read(name).last('EXPOSE').split()[1]}" for name in IMAGES}
    assert exposed <= targets, json.dumps(sorted(targets))
