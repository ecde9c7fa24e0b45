"""Every administration route of the API's own description, for every role, on its own
organisation's things and on another's. A route that is not in this table fails the test.
"""

import re

import httpx2
import pytest

from gateway.identity.models import Role

ROOT = "/v1/organization"
PROJECT = ROOT + "/projects/{project_id}"
ALL = frozenset(Role)
TOP = frozenset({Role.OWNER, Role.ADMIN})
PROGRAMMERS = TOP | {Role.DEVELOPER}
TREASURERS = TOP | {Role.BILLING}
MAY = {
    ("GET", ROOT + "/projects"): ALL,
    ("POST", ROOT + "/projects"): TOP,
    ("GET", PROJECT): ALL,
    ("POST", PROJECT): TOP,
    ("GET", PROJECT + "/api_keys"): PROGRAMMERS,
    ("GET", PROJECT + "/api_keys/{key_id}"): PROGRAMMERS,
    ("POST", PROJECT + "/api_keys/{key_id}"): PROGRAMMERS,
    ("DELETE", PROJECT + "/api_keys/{key_id}"): PROGRAMMERS,
    ("POST", PROJECT + "/api_keys/{key_id}/rotate"): PROGRAMMERS,
    ("GET", PROJECT + "/service_accounts"): PROGRAMMERS,
    ("POST", PROJECT + "/service_accounts"): PROGRAMMERS,
    ("GET", PROJECT + "/service_accounts/{account_id}"): PROGRAMMERS,
    ("POST", PROJECT + "/service_accounts/{account_id}"): PROGRAMMERS,
    ("DELETE", PROJECT + "/service_accounts/{account_id}"): PROGRAMMERS,
    ("POST", PROJECT + "/service_accounts/{account_id}/api_keys"): PROGRAMMERS,
    ("GET", ROOT + "/admin_api_keys"): TOP,
    ("POST", ROOT + "/admin_api_keys"): TOP,
    ("GET", ROOT + "/admin_api_keys/{key_id}"): TOP,
    ("DELETE", ROOT + "/admin_api_keys/{key_id}"): TOP,
    ("POST", ROOT + "/admin_api_keys/{key_id}/rotate"): TOP,
    ("GET", ROOT + "/credits"): ALL,
    ("POST", ROOT + "/credits"): TREASURERS,
    ("GET", ROOT + "/users"): ALL,
    ("POST", ROOT + "/users"): TOP,
    ("GET", ROOT + "/users/{user_id}"): ALL,
    ("POST", ROOT + "/users/{user_id}"): TOP,
    ("DELETE", ROOT + "/users/{user_id}"): TOP,
    ("GET", ROOT + "/invites"): ALL,
    ("POST", ROOT + "/invites"): TOP,
    ("GET", ROOT + "/invites/{invite_id}"): ALL,
    ("DELETE", ROOT + "/invites/{invite_id}"): TOP,
    ("GET", PROJECT + "/users"): ALL,
    ("POST", PROJECT + "/users"): TOP,
    ("GET", PROJECT + "/users/{user_id}"): ALL,
    ("POST", PROJECT + "/users/{user_id}"): TOP,
    ("DELETE", PROJECT + "/users/{user_id}"): TOP,
    ("GET", PROJECT + "/rate_limits"): ALL,
    ("POST", PROJECT + "/rate_limits/{rate_limit_id}"): TOP,
    **{
        (method, owner + "/spend_limit"): ALL if method == "GET" else TREASURERS
        for owner in (ROOT, PROJECT)
        for method in ("GET", "POST", "DELETE")
    },
    **{
        (method, owner + path): ALL if method == "GET" else TREASURERS
        for owner in (ROOT, PROJECT)
        for method, path in (
            ("GET", "/spend_alerts"),
            ("POST", "/spend_alerts"),
            ("GET", "/spend_alerts/{alert_id}"),
            ("POST", "/spend_alerts/{alert_id}"),
            ("DELETE", "/spend_alerts/{alert_id}"),
        )
    },
    ("GET", ROOT + "/usage/completions"): ALL,
    ("GET", ROOT + "/usage/embeddings"): ALL,
    ("GET", ROOT + "/costs"): ALL,
    ("GET", ROOT + "/audit_logs"): TOP,
    ("POST", PROJECT + "/archive"): TOP,  # last: nothing is left to do after it
}
UNKNOWN = "nothing_of_anybody"


@pytest.fixture
async def roles(clients):
    """An admin key of acme's for each role, and the ids of its and of globex's project."""
    (acme, globex, _), live = clients
    organization = acme.admin.organization
    keys = {
        role: (await organization.admin_api_keys.create(name=role, extra_body={"role": role})).value
        for role in Role
    }
    await live.refresh()
    [mine] = [one.id async for one in organization.projects.list()]
    [theirs] = [one.id async for one in globex.admin.organization.projects.list()]
    return acme._client, keys, mine, theirs


async def test_every_route_for_every_role_on_own_and_foreign_things(roles):
    http, keys, mine, theirs = roles
    paths = (await http.get("http://gateway/openapi.json")).json()["paths"]
    described = {
        (method.upper(), route): operation.get("x-right")
        for route, operations in paths.items()
        for method, operation in operations.items()
        if route.startswith(ROOT)
    }
    assert described.keys() == MAY.keys()
    assert None not in described.values(), "a route that needs no right"

    async def ask(method: str, route: str, project: str, role: Role) -> httpx2.Response:
        path = re.sub(r"{(\w+)}", lambda m: project if m[1] == "project_id" else UNKNOWN, route)
        headers = {"authorization": f"Bearer {keys[role]}"}
        return await http.request(method, f"http://gateway{path}", headers=headers)

    for (method, route), may in MAY.items():
        for role in Role:
            case = (method, route, str(role))
            answer = await ask(method, route, mine, role)
            assert (answer.status_code != 403) == (role in may), case
            assert answer.status_code in (200, 400, 403, 404), (case, answer.text)
            if "{project_id}" not in route:
                continue
            foreign, missing = (
                await ask(method, route, theirs, role),
                await ask(method, route, UNKNOWN, role),
            )
            assert foreign.status_code == missing.status_code == (404 if role in may else 403), case
            assert foreign.json() == missing.json(), case
