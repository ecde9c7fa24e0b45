"""What is changed on the page of budgets: one budget or one alert at a time, and audited."""

import re
from decimal import Decimal

from gateway.admin.alerts import MOST_ALERTS, recipients_of
from gateway.dashboard.numbers import usd
from gateway.dashboard.page import Action, Done
from gateway.dashboard.visit import Form, Visit
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.identity.rights import Right
from gateway.ids import new_id
from gateway.limits.models import MOST_NANO, Level, SpendAlert
from gateway.limits.repository import LimitRepository
from gateway.limits.rules import Subject
from gateway.limits.service import LimitService

NANO = 10**9
MOST_DIGITS = 24
AMOUNT = re.compile(r"(?=.)([0-9]+|[1-9][0-9]{0,2}(,[0-9]{3})+)?(\.[0-9]+)?")


async def set_budget(visit: Visit, form: Form) -> Done:
    subject, project = await _subject(visit, form)
    nano, period = nano_in(form, "amount", least=0), form.get("period", "")
    await LimitService(visit.session, visit.organisation, visit.now).set_budget(
        subject,
        period,
        nano,
        time_zone=form.get("time_zone") or "UTC",
        on_exhaust=form.get("on_exhaust", ""),
    )
    await visit.note(_kind(project, "spend_limit.updated"), subject.id, project, nano_usd=nano,
                     period=period)  # fmt: skip
    return Done("The budget is set.")


async def remove_budget(visit: Visit, form: Form) -> Done:
    subject, project = await _subject(visit, form)
    service = LimitService(visit.session, visit.organisation, visit.now)
    if not await service.remove_budget(subject, form.get("period", "")):
        raise ResourceNotFound("There is no such budget.")
    await visit.note(_kind(project, "spend_limit.deleted"), subject.id, project)
    return Done("The budget is removed: nothing limits spending there.")


async def add_alert(visit: Visit, form: Form) -> Done:
    _, project = await _subject(visit, form)
    rows = LimitRepository(visit.session, visit.organisation)
    if len(await rows.alerts(project)) >= MOST_ALERTS:
        raise InvalidRequest(f"There are {MOST_ALERTS} alerts: remove one first.")
    addresses = form.get("recipients", "").replace(",", " ").split()
    row = SpendAlert(
        id=new_id("alert"),
        organisation_id=visit.organisation,
        project_id=project,
        threshold_nano=nano_in(form, "amount", least=1),
        recipients="\n".join(recipients_of(addresses)),
        subject_prefix=None,
        created_at=visit.now,
    )
    rows.add(row)
    change = {"nano_usd": row.threshold_nano}
    await visit.note(_kind(project, "spend_alert.created"), row.id, project, **change)
    return Done("The alert is set.")


async def remove_alert(visit: Visit, form: Form) -> Done:
    _, project = await _subject(visit, form)
    rows = LimitRepository(visit.session, visit.organisation)
    row = await rows.alert(form.get("alert", ""), project)
    if row is None:
        raise ResourceNotFound("There is no such alert.")
    await rows.forget_deliveries(row.id)
    await rows.remove(row)
    await visit.note(_kind(project, "spend_alert.deleted"), row.id, project)
    return Done("The alert is removed.")


def nano_in(form: Form, name: str, *, least: int) -> int:
    """Dollars as people write them, to the nano. Raises InvalidRequest.

    A comma parts thousands: where it may stand for a point, as in 0,50, nothing is guessed.
    """
    text = form.get(name, "").strip().removeprefix("$")
    nano = None
    if len(text) <= MOST_DIGITS and AMOUNT.fullmatch(text):
        nano = Decimal(text.replace(",", "")) * NANO
    if nano is None or nano != nano.to_integral_value():
        raise InvalidRequest(
            f"{name} {text[:MOST_DIGITS]!r} is not an amount of dollars like 25, 0.50 or 1,500",
            param=name,
        )
    if not least <= nano <= MOST_NANO:
        raise InvalidRequest(f"{name}: from {usd(least)} to {usd(MOST_NANO)}", param=name)
    return int(nano)


async def _subject(visit: Visit, form: Form) -> tuple[Subject, str | None]:
    """Of the organisation, or of the project that the form names."""
    if not (name := form.get("project", "")):
        return Subject(Level.ORGANISATION, visit.organisation), None
    project = await visit.project(name)
    return Subject(Level.PROJECT, project.id), project.id


def _kind(project: str | None, what: str) -> str:
    return f"{'organization' if project is None else 'project'}.{what}"


ACTIONS = {
    "set-budget": Action(set_budget, Right.SPENDING),
    "remove-budget": Action(remove_budget, Right.SPENDING),
    "add-alert": Action(add_alert, Right.SPENDING),
    "remove-alert": Action(remove_alert, Right.SPENDING),
}
