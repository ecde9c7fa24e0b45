"""``/v1/organization/…``: what the official client's ``client.admin`` calls."""

from fastapi import APIRouter

from gateway.admin.accounts import add_accounts
from gateway.admin.alerts import add_alerts
from gateway.admin.audit import add_audit
from gateway.admin.credits import add_credits
from gateway.admin.desk import AdminDesk
from gateway.admin.invites import add_invites
from gateway.admin.keys import add_admin_keys, add_keys
from gateway.admin.limits import add_limits
from gateway.admin.paths import ONE, ROOT
from gateway.admin.people import add_members, add_people
from gateway.admin.projects import add_projects
from gateway.admin.reports import add_reports


def admin_router(desk: AdminDesk) -> APIRouter:
    """Each route says which right it needs; without one it lets nobody in."""
    router = APIRouter(tags=["administration"])
    add_projects(router, desk)
    add_keys(router, desk)
    add_accounts(router, desk)
    add_admin_keys(router, desk)
    add_people(router, desk)
    add_members(router, desk)
    add_invites(router, desk)
    add_limits(router, desk)
    add_credits(router, desk)
    add_alerts(router, desk, ROOT + "/spend_alerts", "organization.spend_alert")
    add_alerts(router, desk, ONE + "/spend_alerts", "project.spend_alert")
    add_reports(router, desk)
    add_audit(router, desk)
    return router
