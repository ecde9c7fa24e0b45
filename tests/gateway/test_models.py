"""/v1/models shows a tenant its own world and nothing else."""

from tests.gateway.serving import BASE, KEY, LIMITED_KEY, OTHER_KEY, ask, serving


def get(path, key=KEY):
    lines = [f"GET {path} HTTP/1.1", "host: localhost", "connection: close",
             f"authorization: Bearer {key}"]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def test_each_tenant_sees_the_base_and_its_own_adapters(tmp_path):
    async with serving(tmp_path) as server:
        mine = (await ask(server.port, get("/v1/models"))).json
        assert mine["object"] == "list"
        assert [model["id"] for model in mine["data"]] == [BASE, "support", "json"]
        assert mine["data"][1] == {
            "id": "support", "object": "model", "created": 2, "owned_by": "acme",
        }  # fmt: skip
        theirs = (await ask(server.port, get("/v1/models", OTHER_KEY))).json
        assert [model["id"] for model in theirs["data"]] == [BASE]


async def test_one_model_by_name_also_when_the_name_is_escaped(tmp_path):
    async with serving(tmp_path) as server:
        server.snapshot.adapters["prj_acme", "ft:tiny:org:a/b"] = server.snapshot.adapters[
            "prj_acme", "json"
        ]
        for name in ("ft:tiny:org:a/b", "ft%3Atiny%3Aorg%3Aa%2Fb"):
            got = await ask(server.port, get(f"/v1/models/{name}"))
            assert (got.status, got.json["id"]) == (200, "ft:tiny:org:a/b")
        foreign = await ask(server.port, get("/v1/models/support", OTHER_KEY))
        assert (foreign.status, foreign.error["code"]) == (404, "model_not_found")


async def test_listing_shows_the_limits_and_takes_nothing_of_them(tmp_path):
    async with serving(tmp_path) as server:
        for _ in range(5):
            got = await ask(server.port, get("/v1/models", LIMITED_KEY))
            assert got.status == 200
            assert got.headers["x-ratelimit-remaining-requests"] == "3"


async def test_the_api_describes_itself(tmp_path):
    async with serving(tmp_path) as server:
        document = (await ask(server.port, get("/openapi.json"))).json
        assert document["openapi"].startswith("3.")
        assert {"/v1/chat/completions", "/v1/completions", "/v1/models"} <= set(document["paths"])
        schema = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
        assert "temperature" in schema["content"]["application/json"]["schema"]["properties"]
