"""Manifests, without a cluster: schemas, our command lines, and what one promises another."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from engine.cli import Serve, parse
from gateway.cli.main import build_parser
from gateway.config import Settings
from gateway.listener import DRAIN_SECONDS
from tests.deploy.exported import exported_names
from tests.deploy.kustomize import Object, containers, render, templates

ROOT = Path(__file__).parents[2] / "deploy" / "kubernetes"
OVERLAYS = ("base", "overlays/llama-70b", "overlays/llama-8b-https")
OLDEST, NEWEST = (
    "1.31",
    "1.37",
)  # of Kubernetes; sleeping before the end is on by default since 1.30
SCHEMAS = Path(__file__).parent / "schemas"
BYTES_OF_70B, SLOWEST_DISK = 41e9, 125e6  # in 4 bits; bytes a second


@pytest.fixture(scope="module", params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return render(ROOT / request.param)


def one(objects: list[Object], kind: str, name: str = "loratorio") -> Any:
    (found,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


def container(objects: list[Object], name: str) -> Any:
    (found,) = [c for c in containers(one(objects, "StatefulSet")) if c["name"] == name]
    return found


def settings_of(objects: list[Object], folder: Path) -> Settings:
    """With a file for each secret, as the kubelet mounts them."""
    said = json.loads(one(objects, "ConfigMap", "loratorio-settings")["data"]["gateway.json"])
    for value in said.values():
        if isinstance(value, dict):
            assert value["file"].startswith("/etc/loratorio/secrets/")
            file = folder / Path(value["file"]).name
            file.write_text("postgresql://u:p@h/d")
            value["file"] = str(file)
    return Settings.from_json(json.dumps(said).encode())


@pytest.mark.parametrize(
    ("overlay", "version"), [(OVERLAYS[0], OLDEST), *((each, NEWEST) for each in OVERLAYS[1:])]
)
def test_every_object_is_what_its_schema_says(overlay: str, version: str):
    for each in render(ROOT / overlay):
        group = each["apiVersion"].partition("/")[0]
        own = SCHEMAS / f"{each['kind']}.json"
        if own.exists():
            schema = json.loads(own.read_text())
            assert schema["properties"]["apiVersion"]["const"].startswith(group)
            Draft202012Validator(schema).validate(each)
        else:
            kubernetes_validate.validate(each, version, strict=True)


def test_a_misspelt_field_does_not_pass():
    (policy, *_rest) = yaml.safe_load_all((ROOT / "base" / "network.yaml").read_text())
    policy["spec"]["policyType"] = policy["spec"].pop("policyTypes")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(policy, NEWEST, strict=True)


def test_the_engine_understands_its_arguments_and_is_reached_where_the_gateway_looks(
    objects: list[Object], tmp_path: Path
):
    engine = container(objects, "engine")
    assert engine["command"] == ["python", "-m", "engine", "serve"]
    parsed = parse(["serve", *engine["args"]])
    assert isinstance(parsed, Serve)
    settings = settings_of(objects, tmp_path)
    assert settings.engines == (parsed.config.listen,)
    assert str(settings.model_dir) == parsed.config.model
    assert settings.served_model_name == parsed.config.served_model_name
    assert settings.adapter_store == parsed.config.adapter_store
    assert engine["ports"][0]["containerPort"] == parsed.config.metrics_port


def test_the_gateway_listens_where_services_probes_and_scrapers_look(
    objects: list[Object], tmp_path: Path
):
    gateway, settings = container(objects, "gateway"), settings_of(objects, tmp_path)
    ports = {port["name"]: port["containerPort"] for port in gateway["ports"]}
    assert ports == {"http": settings.port, "metrics": settings.metrics_port}
    scheme = "HTTPS" if settings.ssl_certfile else "HTTP"
    for probe, path in (
        ("startup", "/healthz"),
        ("liveness", "/healthz"),
        ("readiness", "/readyz"),
    ):
        asked = gateway[f"{probe}Probe"]["httpGet"]
        assert (asked["path"], asked.get("scheme", "HTTP"), asked["port"]) == (path, scheme, "http")
    for service in (o for o in objects if o["kind"] == "Service"):
        if service["spec"]["selector"].get("app.kubernetes.io/component") == "serving":
            assert all(port["targetPort"] in ports for port in service["spec"]["ports"])
    if settings.ssl_certfile and settings.ssl_keyfile:
        mounted = {m["mountPath"] for m in gateway["volumeMounts"]}
        assert {str(f.parent) for f in (settings.ssl_certfile, settings.ssl_keyfile)} <= mounted


def test_the_commands_of_ours_are_commands(objects: list[Object]):
    seen = 0
    for each in objects:
        for found in containers(each):
            if found["command" if "command" in found else "args"][0] == "loratorio":
                words = [*found["command"][1:], *found["args"]]
                parsed = build_parser(words[0]).parse_args(words)
                mounts = {Path(m["mountPath"]) for m in found["volumeMounts"]}
                assert parsed.settings.parent in mounts
                seen += 1
    assert seen == 2  # the job, and before each gateway


def test_a_70b_has_time_to_load_from_the_slowest_disk(objects: list[Object]):
    probe = container(objects, "engine")["startupProbe"]
    allowed = probe["failureThreshold"] * probe["periodSeconds"]
    assert allowed >= 5 * BYTES_OF_70B / SLOWEST_DISK
    assert f"{BYTES_OF_70B / SLOWEST_DISK:.0f} s" in (ROOT / "base" / "serving.yaml").read_text()


def test_a_gateway_has_time_to_drain_and_ends_before_its_engine(objects: list[Object]):
    (template,) = templates(one(objects, "StatefulSet"))
    engine, gateway = container(objects, "engine"), container(objects, "gateway")
    assert engine["restartPolicy"] == "Always"  # a sidecar: ended after the others
    assert [c["name"] for c in template["spec"]["containers"]] == ["gateway"]
    waits = gateway["lifecycle"]["preStop"]["sleep"]["seconds"]
    parsed = parse(["serve", *engine["args"]])
    assert isinstance(parsed, Serve)
    engines = parsed.config.drain_timeout_s
    assert template["spec"]["terminationGracePeriodSeconds"] >= waits + DRAIN_SECONDS + engines


def test_nothing_runs_as_root_or_writes_outside_its_volumes(objects: list[Object]):
    for each in objects:
        for template in templates(each):
            pod = template["spec"]["securityContext"]
            assert pod["runAsNonRoot"] is True
            assert pod["runAsUser"] > 0
            assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        for found in containers(each):
            assert found["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "memory" in found["resources"]["limits"], found["name"]


def test_all_that_is_mounted_is_there_and_all_that_is_there_is_mounted(objects: list[Object]):
    for each in objects:
        for template in templates(each):
            volumes = {volume["name"] for volume in template["spec"].get("volumes", [])}
            claims = each["spec"].get("volumeClaimTemplates", [])
            volumes |= {claim["metadata"]["name"] for claim in claims}
            mounted = {m["name"] for c in containers(each) for m in c.get("volumeMounts", [])}
            assert mounted == volumes
            for volume in template["spec"].get("volumes", []):
                if "configMap" in volume:
                    one(objects, "ConfigMap", volume["configMap"]["name"])
                if claim := volume.get("persistentVolumeClaim"):
                    one(objects, "PersistentVolumeClaim", claim["claimName"])


def test_what_the_programs_write_is_kept_or_theirs_alone(objects: list[Object], tmp_path: Path):
    settings = settings_of(objects, tmp_path)
    places = {m["mountPath"]: m for m in container(objects, "gateway")["volumeMounts"]}
    assert places[str(settings.data_dir)]["name"] == "data"  # the usage log outlives the pod
    assert places[str(settings.file_dir)]["name"] == "files"  # and gateways share these
    engine = container(objects, "engine")
    written = [Path(m["mountPath"]) for m in engine["volumeMounts"] if not m.get("readOnly")]
    for variable in engine["env"]:
        assert any(Path(variable["value"]).is_relative_to(place) for place in written)
    assert any(m["mountPath"] == "/dev/shm" for m in engine["volumeMounts"])


def test_no_secret_is_written_down(objects: list[Object]):
    assert not [o for o in objects if o["kind"] == "Secret"]
    text = json.dumps(objects)
    assert not re.search(r"postgres(ql)?://|redis://|password|BEGIN", text)


def test_selectors_find_the_pods_they_are_for(objects: list[Object]):
    pods = {
        each["metadata"]["name"]: template["metadata"]["labels"].items()
        for each in objects
        for template in templates(each)
    }
    for each in objects:
        selector = each.get("spec", {}).get("selector") or each.get("spec", {}).get("podSelector")
        if selector:
            labels = selector.get("matchLabels", selector).items()
            assert any(labels <= found for found in pods.values()), each["metadata"]["name"]


def test_autoscaling_and_the_picker_read_what_is_exported():
    objects = render(ROOT / "overlays" / "llama-70b")
    (trigger,) = one(objects, "ScaledObject")["spec"]["triggers"]
    read = set(re.findall(r"vllm:\w+", trigger["metadata"]["query"]))
    assert read
    assert read <= exported_names()
    # What the picker's scorers read of a model server that is as vLLM.
    assert {"vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"} <= exported_names()
    config = yaml.safe_load(
        one(objects, "ConfigMap", "loratorio-picker")["data"]["picker-config.yaml"]
    )
    types = [plugin["type"] for plugin in config["plugins"]]
    (profile,) = config["schedulingProfiles"]
    refs = {plugin["pluginRef"]: plugin.get("weight") for plugin in profile["plugins"]}
    assert refs.keys() <= set(types)
    assert max(refs, key=lambda ref: refs[ref] or 0) == "lora-affinity-scorer"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_count_that_an_autoscaler_has_is_not_in_the_manifest(overlay: str):
    objects = render(ROOT / overlay)
    scaled = [o for o in objects if o["kind"] in ("ScaledObject", "HorizontalPodAutoscaler")]
    assert ("replicas" in one(objects, "StatefulSet")["spec"]) == (not scaled)


def test_the_picker_scrapes_the_page_that_names_adapters_as_clients_do(tmp_path: Path):
    objects = render(ROOT / "overlays" / "llama-70b")
    settings = settings_of(objects, tmp_path)
    (picker,) = containers(one(objects, "Deployment", "loratorio-picker"))
    flags = dict(argument.removeprefix("--").split("=", 1) for argument in picker["args"])
    assert int(flags["model-server-metrics-port"]) == settings.metrics_port
    pool = one(objects, "InferencePool")
    assert flags["pool-name"] == pool["metadata"]["name"]
    assert flags["pool-namespace"] == pool["metadata"]["namespace"]
    assert pool["spec"]["targetPorts"] == [{"number": settings.port}]
    assert pool["spec"]["endpointPickerRef"]["port"]["number"] == int(flags["grpc-port"])


def test_traces_reach_the_collector_that_the_component_names(tmp_path: Path):
    """The base lets nothing out but to names, stores and https."""
    tracing = ROOT / "components" / "tracing"
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({"resources": [str(ROOT / "base")], "components": [str(tracing)]})
    )
    objects = render(tmp_path)
    parsed = parse(["serve", *container(objects, "engine")["args"]])
    assert isinstance(parsed, Serve)
    collector = urlsplit(str(parsed.config.otlp_traces_endpoint))
    _, namespace, *_ = str(collector.hostname).split(".")
    assert (
        f'"otlp_traces_endpoint": "{collector.geturl()}"'
        in (tracing / "kustomization.yaml").read_text()
    )  # what the gateway's settings are told to say
    policy = one(objects, "NetworkPolicy", "traces")
    kubernetes_validate.validate(policy, NEWEST, strict=True)
    pods = policy["spec"]["podSelector"]["matchLabels"].items()
    labels = one(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert pods <= labels.items()
    [way] = policy["spec"]["egress"]
    [to] = way["to"]
    assert to["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": namespace}
    assert way["ports"] == [{"protocol": "TCP", "port": collector.port}]
    for image in ("gateway", "engine"):
        assert "otel" in (ROOT.parent / f"{image}.Dockerfile").read_text()
