"""What is done on the page of adapters: names move, versions are kept close or retired."""

from gateway.catalog.service import CatalogService
from gateway.dashboard.page import Action, Done
from gateway.dashboard.visit import Form, Visit
from gateway.errors import InvalidRequest
from gateway.identity.rights import Right


async def set_alias(visit: Visit, form: Form) -> Done:
    catalog, project = await _catalog(visit, form)
    name, version = form.get("alias", ""), form.get("version", "")
    canary, percent = form.get("canary") or None, form.get("percent", "").strip()
    if not percent.isdecimal() or len(percent) > 3:
        raise InvalidRequest(f"percent {percent[:8]!r}: from 0 to 100", param="percent")
    await catalog.set_alias(name, version, canary=canary, percent=int(percent))
    await visit.note("adapter_alias.updated", name, project, version=version, canary=canary,
                     percent=int(percent))  # fmt: skip
    return Done(f"{name} leads to {version} from now on.")


async def roll_back(visit: Visit, form: Form) -> Done:
    catalog, project = await _catalog(visit, form)
    name = form.get("alias", "")
    row = await catalog.roll_back(name)
    await visit.note("adapter_alias.updated", name, project, rolled_back_to=row.adapter_id)
    return Done(f"{name} is as it was before.")


async def delete_alias(visit: Visit, form: Form) -> Done:
    catalog, project = await _catalog(visit, form)
    await catalog.delete_alias(name := form.get("alias", ""))
    await visit.note("adapter_alias.deleted", name, project)
    return Done(f"{name} leads nowhere any more.")


async def keep_close(visit: Visit, form: Form) -> Done:
    catalog, project = await _catalog(visit, form)
    version, close = form.get("version", ""), form.get("close") == "yes"
    await catalog.pin(version, close)
    await visit.note("adapter.updated", version, project, pinned=close)
    return Done(
        f"{version} is {'kept close to the engines' if close else 'loaded when asked for'}."
    )


async def retire(visit: Visit, form: Form) -> Done:
    catalog, project = await _catalog(visit, form)
    version = form.get("version", "")
    await catalog.retire(version)
    await visit.note("adapter.retired", version, project)
    return Done(f"{version} is retired: what runs on it may end.")


async def _catalog(visit: Visit, form: Form) -> tuple[CatalogService, str]:
    """Raises ResourceNotFound, and PermissionDenied where the viewer may not change adapters."""
    project = await visit.project(form.get("project", ""))
    visit.require(Right.ADAPTERS, project.id)
    return CatalogService(visit.session, project.id, visit.now), project.id


ACTIONS = {
    "set-alias": Action(set_alias, None),
    "roll-back": Action(roll_back, None),
    "delete-alias": Action(delete_alias, None),
    "keep-close": Action(keep_close, None),
    "retire": Action(retire, None),
}
