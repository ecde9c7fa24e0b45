"""Two organisations with two projects each, and a key of every kind, alive and dead."""

import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2

from engine.protocol import AdapterRef
from gateway.batches.models import Batch, BatchState
from gateway.catalog.service import CatalogService
from gateway.db import Database
from gateway.files.models import Purpose, StoredFile
from gateway.files.store import new_file_id
from gateway.identity.keys import generate
from gateway.identity.models import User
from gateway.identity.pepper import Peppers
from gateway.identity.service import IdentityService, KeyTerms
from gateway.ids import new_id
from gateway.limits.models import SpendAlert
from gateway.responses.models import StoredResponse
from tests.faults.rig import Rig


@dataclass
class Tenants:
    keys: dict[str, str] = field(default_factory=dict)  # "one/a" -> its key
    admins: dict[str, str] = field(default_factory=dict)  # "one" -> its admin key
    dead: dict[str, str] = field(default_factory=dict)  # why -> what is presented
    ids: dict[str, dict[str, str]] = field(default_factory=dict)  # "one/a" -> kind -> id

    @property
    def every_secret(self) -> list[str]:
        return [*self.keys.values(), *self.admins.values(), *self.dead.values()]


async def make_tenants(rig: Rig, database: Database) -> Tenants:
    peppers = Peppers.load(rig.settings.pepper, rig.settings.pepper_file)
    now, tenants = datetime.now(UTC), Tenants()
    async with database.publish() as session:
        service = IdentityService(session, now)
        for organisation in ("one", "two"):
            for name in ("a", "b"):
                project = await service.create_project(name, organisation)
                key = service.issue(project, KeyTerms(), peppers=peppers)
                adapter = await CatalogService(session, project.id, now).publish(
                    f"adapter-of-{organisation}-{name}", AdapterRef("d1", 8)
                )
                place = f"{organisation}/{name}"
                account = service.create_account(project, "bot")
                user = User(
                    id=new_id("user"), organisation_id=project.organisation_id, role="viewer",
                    email=f"{name}@{organisation}.example", name=name, created_at=now,
                )  # fmt: skip
                alert = SpendAlert(
                    id=new_id("alert"), organisation_id=project.organisation_id,
                    project_id=project.id, threshold_nano=10**9, recipients="a@b", created_at=now,
                )  # fmt: skip
                session.add_all([user, alert])
                file, batch = _file(project.id, now), _batch(project.id, key.id, now)
                response = _response(project.id, now)
                session.add_all((file, batch, response))
                tenants.keys[place] = key.text
                tenants.ids[place] = {
                    "organisation": project.organisation_id,
                    "project": project.id,
                    "key": key.id,
                    "adapter": adapter.id,
                    "account": account.id,
                    "user": user.id,
                    "alert": alert.id,
                    "model": f"adapter-of-{organisation}-{name}",
                    "file": file.id,
                    "batch": batch.id,
                    "response": response.id,
                }
            owner = await service.organisation(organisation, create=True)
            admin = service.issue_admin(owner, KeyTerms(), peppers=peppers)
            tenants.admins[organisation] = admin.text
        late = KeyTerms(expires_at=now + timedelta(milliseconds=1))
        tenants.dead["expired"] = service.issue(project, late, peppers=peppers).text
        revoked = service.issue(project, KeyTerms(), peppers=peppers)
        await session.flush()
        await service.revoke(revoked.id)
        tenants.dead["revoked"] = revoked.text
        gone = await service.create_project("gone", "two")
        tenants.dead["of an archived project"] = service.issue(
            gone, KeyTerms(), peppers=peppers
        ).text
        await session.flush()
        await service.archive("two/gone")
    alive = tenants.keys["one/a"]
    tenants.dead |= {
        "unknown": generate("live").text,
        "mistyped": alive[:-1] + ("a" if alive[-1] != "a" else "b"),
        "its hash": peppers_hash(alive, peppers),
        "an injection": "'OR'1'='1",
        "empty words": "sk-",
    }
    return tenants


def _file(project: str, now: datetime) -> StoredFile:
    return StoredFile(
        id=new_file_id(), project_id=project, filename="in.jsonl", purpose=Purpose.BATCH, nbytes=1,
        created_at=now, expires_at=now + timedelta(days=1),
    )  # fmt: skip


def _response(project: str, now: datetime) -> StoredResponse:
    return StoredResponse(
        id=new_id("resp"), project_id=project, body="{}", items="[]", conversation="[]",
        created_at=now, expires_at=now + timedelta(days=1),
    )  # fmt: skip


def _batch(project: str, key: str, now: datetime) -> Batch:
    """One that has ended."""
    return Batch(
        id=new_id("batch"), project_id=project, key_id=key, endpoint="/v1/completions",
        completion_window="24h", state=BatchState.COMPLETED, input_file=new_file_id(), total=0,
        completed=0, failed=0, prompt_tokens=0, cached_tokens=0, completion_tokens=0,
        created_at=now, expires_at=now, ended_at=now, fence=0,
    )  # fmt: skip


def peppers_hash(key: str, peppers: Peppers) -> str:
    from gateway.identity.keys import parse

    parsed = parse(key)
    assert parsed is not None
    return parsed.hash(peppers[peppers.current])


@dataclass
class Caller:
    """Sends requests and keeps everything that came back."""

    url: str
    heard: list[str] = field(default_factory=list)
    # Nothing here is encrypted, and loading certificates for each request takes longer than it.
    tls: ssl.SSLContext = field(default_factory=lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    async def send(
        self, method: str, path: str, key: str | None, body: Any = None
    ) -> httpx2.Response:
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        async with httpx2.AsyncClient(timeout=10, verify=self.tls) as client:
            answer = await client.request(
                method, self.url + path, headers=headers, json=body if method != "GET" else None
            )
        self.heard.append(f"{answer.headers} {answer.text}")
        return answer
