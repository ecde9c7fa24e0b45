"""``…/projects``."""

from fastapi import APIRouter
from starlette.requests import Request

from gateway.admin import shapes
from gateway.admin.desk import AdminDesk, body_of, text_of
from gateway.admin.paths import ONE, ROOT
from gateway.admin.shapes import Json, page
from gateway.errors import InvalidRequest
from gateway.identity.rights import Right
from gateway.identity.service import IdentityService


def add_projects(router: APIRouter, desk: AdminDesk) -> None:
    @router.get(ROOT + "/projects", **desk.needs(Right.READ))
    async def list_projects(
        request: Request, after: str | None = None, limit: int = 20, include_archived: bool = False
    ) -> Json:
        async with desk.reading(request) as visit:
            rows = await visit.rows.projects(archived=include_archived)
            return page([shapes.project(row) for row in rows], after, limit)

    @router.post(ROOT + "/projects", **desk.needs(Right.PROJECTS))
    async def create_project(request: Request) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            service = IdentityService(visit.session, visit.now)
            row = await service.create_project_of(visit.who.organisation, text_of(body, "name"))
            await visit.session.flush()
            await visit.note("project.created", row.id, row.id, name=row.name)
            return shapes.project(row)

    @router.get(ONE, **desk.needs(Right.READ))
    async def retrieve_project(request: Request, project_id: str) -> Json:
        async with desk.reading(request) as visit:
            return shapes.project(await visit.project(project_id))

    @router.post(ONE, **desk.needs(Right.PROJECTS))
    async def change_project(request: Request, project_id: str) -> Json:
        body = await body_of(request)
        async with desk.changing(request) as visit:
            row = await visit.project(project_id)
            if row.archived_at is not None:
                raise InvalidRequest("this project is archived")
            before, name = row.name, text_of(body, "name")
            if name != before:
                await IdentityService(visit.session, visit.now).rename(row, name)
                await visit.note("project.updated", row.id, row.id, name=name, before=before)
            return shapes.project(row)

    @router.post(ONE + "/archive", **desk.needs(Right.PROJECTS))
    async def archive_project(request: Request, project_id: str) -> Json:
        async with desk.changing(request) as visit:
            row = await visit.project(project_id)
            await visit.rows.archive(row, visit.now)
            await visit.note("project.archived", row.id, row.id)
            return shapes.project(row)
