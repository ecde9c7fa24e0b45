"""Every route of the API's own description, for every kind of key, on every tenant's things.

A route that the description names and this file does not know how to call fails the test.
"""

import re
from typing import Any

import pytest

from tests.faults.rig import BASE, Rig, running
from tests.isolation.tenants import Caller, Tenants, make_tenants
from tests.services import Postgres

pytestmark = pytest.mark.slow

PUBLIC = {"/healthz", "/readyz"}
ADMIN = "/v1/organization/"
SAY = [{"role": "user", "content": "Hello"}]
INFERENCE: dict[str, dict[str, Any]] = {  # route -> a body that works
    "/v1/chat/completions": {"model": BASE, "messages": SAY, "max_tokens": 1},
    "/v1/completions": {"model": BASE, "prompt": "Hello", "max_tokens": 1},
    "/v1/embeddings": {"model": BASE, "input": "Hello"},
    "/v1/responses": {"model": BASE, "input": "Hello", "max_output_tokens": 1, "store": False},
    "/v1/responses/input_tokens": {"model": BASE, "input": "Hello"},
    "/v1/responses/{response_id}": {},
    "/v1/responses/{response_id}/cancel": {},
    "/v1/responses/{response_id}/input_items": {},
    "/tokenize": {"model": BASE, "prompt": "Hello"},
    "/detokenize": {"model": BASE, "tokens": [5, 6]},
    "/tokenizer_info": {},
    "/v1/models": {},
    "/v1/models/{model}": {},
    "/v1/files": {},
    "/v1/files/{file_id}": {},
    "/v1/files/{file_id}/content": {},
    "/v1/batches": {},
    "/v1/batches/{batch_id}": {},
    "/v1/batches/{batch_id}/cancel": {},
}
# What stands in a path -> which of a tenant's ids
PARAMETERS = {
    "model": "model",
    "project_id": "project",
    "key_id": "key",
    "account_id": "account",
    "user_id": "user",
    "alert_id": "alert",
    "file_id": "file",
    "batch_id": "batch",
    "response_id": "response",
}
UNKNOWN = "nothing-of-anybody"


def filled(route: str, ids: dict[str, str]) -> str:
    return re.sub(r"{(\w+)}", lambda name: ids.get(PARAMETERS.get(name[1], ""), UNKNOWN), route)


async def described(caller: Caller) -> list[tuple[str, str]]:
    """(method, route) of all that takes a key."""
    paths = (await caller.send("GET", "/openapi.json", None)).json()["paths"]
    return [
        (method.upper(), route)
        for route, operations in paths.items()
        for method in operations
        if route not in PUBLIC
    ]


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
async def test_every_route_for_every_key_on_every_tenants_things(tmp_path, backend, request):
    url = None
    if backend == "postgres":
        import asyncio

        server: Postgres = request.getfixturevalue("postgres")
        url = await asyncio.to_thread(server.create)
    async with running(tmp_path, database_url=url) as rig, rig.database() as database:
        tenants = await make_tenants(rig, database)
        caller = Caller(f"http://127.0.0.1:{rig.settings.port}")
        await rig.eventually(lambda: knows(caller, tenants), "the keys work")
        operations = await described(caller)
        assert {route for _, route in operations} >= INFERENCE.keys()
        for method, route in operations:
            assert route in INFERENCE or route.startswith(ADMIN), f"how is {route} called?"
            await no_dead_key_works(caller, tenants, method, route)
            await no_key_of_the_other_class_works(caller, tenants, method, route)
            await nothing_of_others_is_found(caller, tenants, method, route)
        await names_of_others_are_as_good_as_none(caller, tenants)
        await lists_hold_ones_own_alone(caller, tenants)
        await nothing_secret_was_said(rig, caller, tenants)


async def knows(caller: Caller, tenants: Tenants) -> bool:
    return (await caller.send("GET", "/v1/models", tenants.keys["two/b"])).status_code == 200


async def no_dead_key_works(caller: Caller, tenants: Tenants, method: str, route: str) -> None:
    """And nothing tells one from another."""
    path, body = filled(route, tenants.ids["one/a"]), INFERENCE.get(route, {})
    answers = {
        why: await caller.send(method, path, key, body)
        for why, key in [*tenants.dead.items(), ("absent", None)]
    }
    assert {why: answer.status_code for why, answer in answers.items()} == dict.fromkeys(
        answers, 401
    ), (method, route)
    assert len({answer.text for answer in answers.values()}) == 1, (method, route)


async def no_key_of_the_other_class_works(
    caller: Caller, tenants: Tenants, method: str, route: str
) -> None:
    path, body = filled(route, tenants.ids["one/a"]), INFERENCE.get(route, {})
    other = tenants.keys["one/a"] if route.startswith(ADMIN) else tenants.admins["one"]
    assert (await caller.send(method, path, other, body)).status_code in (401, 403), (method, route)


async def nothing_of_others_is_found(
    caller: Caller, tenants: Tenants, method: str, route: str
) -> None:
    """A foreign id in the path is answered exactly as one that does not exist."""
    if "{" not in route:
        return
    key = tenants.admins["one"] if route.startswith(ADMIN) else tenants.keys["one/a"]
    others = ("two/a",) if route.startswith(ADMIN) else ("one/b", "two/a")
    missing = await caller.send(method, filled(route, {}), key, INFERENCE.get(route, {}))
    for other in others:
        foreign = await caller.send(
            method, filled(route, tenants.ids[other]), key, INFERENCE.get(route, {})
        )
        assert foreign.status_code == missing.status_code == 404, (method, route, foreign.text)


async def names_of_others_are_as_good_as_none(caller: Caller, tenants: Tenants) -> None:
    for route, body in INFERENCE.items():
        if "model" not in body:
            continue
        for place, key in tenants.keys.items():
            for owner, ids in tenants.ids.items():
                sent = body | {"model": ids["model"]}
                status = (await caller.send("POST", route, key, sent)).status_code
                assert (status == 404) == (place != owner), (route, place, owner, status)


async def lists_hold_ones_own_alone(caller: Caller, tenants: Tenants) -> None:
    for place, key in tenants.keys.items():
        models = (await caller.send("GET", "/v1/models", key)).json()["data"]
        assert {model["id"] for model in models} == {BASE, tenants.ids[place]["model"]}
        for kind, route in (("file", "/v1/files"), ("batch", "/v1/batches")):
            rows = (await caller.send("GET", route, key)).json()["data"]
            assert [row["id"] for row in rows] == [tenants.ids[place][kind]]


async def nothing_secret_was_said(rig: Rig, caller: Caller, tenants: Tenants) -> None:
    """Canaries: no key is in any answer, log, metric, database or usage log."""
    canary = tenants.keys["one/a"]
    wrong = {"model": BASE, "messages": SAY, "max_tokens": canary, "user": canary}
    await caller.send("POST", "/v1/chat/completions", canary, wrong)
    await caller.send("POST", "/v1/chat/completions", f"{canary} {canary}", {})
    await caller.send("GET", f"/v1/models/{canary}", tenants.dead["revoked"])
    await caller.send("GET", f"/nowhere?key={canary}", canary)
    metrics = Caller(f"http://127.0.0.1:{rig.settings.metrics_port}")
    await metrics.send("GET", "/metrics", canary)
    await rig.gateway.end()  # what it wrote is written
    places = {"metrics": "\n".join(metrics.heard), "logs": rig.log.read_text("utf-8", "replace")}
    for file in [*rig.settings.data_dir.rglob("*"), *(rig.folder / "engine").rglob("*")]:
        if file.is_file() and file.name != "pepper":
            places[file.name] = file.read_bytes().decode("latin-1")
    places["answers"] = "\n".join(caller.heard)
    for secret in (secret for secret in tenants.every_secret if len(secret) > 40):
        for place, said in places.items():
            kept = secret == tenants.dead["its hash"] and place.startswith("loratorio.db")
            assert kept or secret not in said, f"{secret[:12]}… in {place}"
