"""What is done on the page of keys. A new key's text is shown once, and kept nowhere."""

from datetime import timedelta

from gateway.dashboard.page import Action, Done, Shown
from gateway.dashboard.visit import Form, Visit
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.identity.models import ApiKey, Project
from gateway.identity.rights import Right
from gateway.identity.service import IdentityService, KeyTerms

LIFETIMES = {"": "never", "7": "in 7 days", "30": "in 30 days", "90": "in 90 days",
             "365": "in a year"}  # fmt: skip
OVERLAPS = {"0": "at once", "1": "in an hour", "24": "in a day", "168": "in a week"}  # hours


async def create_key(visit: Visit, form: Form) -> Shown:
    project = await _project(visit, form)
    if project.archived_at is not None:
        raise InvalidRequest("This project is archived.")
    lifetime = _chosen(form, "expires", LIFETIMES)
    terms = KeyTerms(
        name=form.get("name", ""),
        expires_at=visit.now + timedelta(days=int(lifetime)) if lifetime else None,
        endpoints=_words(form, "endpoints"),
        models=_words(form, "models"),
        networks=_words(form, "networks"),
    )
    sources = visit.sources
    key = IdentityService(visit.session, visit.now).issue(
        project, terms, peppers=sources.peppers, environment=sources.key_environment
    )
    await visit.session.flush()
    await visit.note("api_key.created", key.id, project.id)
    return Shown({"made": key.text, "made_for": terms.name})


async def rotate_key(visit: Visit, form: Form) -> Shown:
    project = await _project(visit, form)
    row = await _key(visit, form, project)
    hours = int(_chosen(form, "overlap", OVERLAPS))
    sources = visit.sources
    key = await IdentityService(visit.session, visit.now).rotate(
        row.id,
        timedelta(hours=hours),
        peppers=sources.peppers,
        environment=sources.key_environment,
    )
    await visit.session.flush()
    await visit.note("api_key.created", key.id, project.id, replaces=row.id)
    await visit.note("api_key.updated", row.id, project.id, ends_in_hours=hours)
    return Shown({"made": key.text, "made_for": row.name})


async def revoke_key(visit: Visit, form: Form) -> Done:
    project = await _project(visit, form)
    row = await _key(visit, form, project)
    if row.revoked_at is None:
        row.revoked_at = visit.now
        await visit.note("api_key.deleted", row.id, project.id)
    return Done(f"The key {row.name} is revoked: nobody gets in with it any more.")


async def _project(visit: Visit, form: Form) -> Project:
    """Raises ResourceNotFound, and PermissionDenied where the viewer may not change keys."""
    project = await visit.project(form.get("project", ""))
    visit.require(Right.KEYS, project.id)
    return project


async def _key(visit: Visit, form: Form, project: Project) -> ApiKey:
    for row in await visit.rows.keys(project.id):
        if row.id == form.get("key"):
            return row
    raise ResourceNotFound("There is no such key.")


def _chosen(form: Form, name: str, choices: dict[str, str]) -> str:
    if (value := form.get(name, "")) not in choices:
        raise InvalidRequest(f"{name} {value[:16]!r}: one of the choices", param=name)
    return value


def _words(form: Form, name: str) -> tuple[str, ...] | None:
    """None where nothing is written: no limit."""
    return tuple(form.get(name, "").replace(",", " ").split()) or None


ACTIONS = {
    "create-key": Action(create_key, None),
    "rotate-key": Action(rotate_key, None),
    "revoke-key": Action(revoke_key, None),
}
