"""Whether texts of requests are kept, for how long, and their erasure: what a tenant decides."""

from gateway.dashboard.page import Action, Done
from gateway.dashboard.visit import Form, Visit
from gateway.errors import InvalidRequest
from gateway.identity.rights import Right
from gateway.refusals.repository import RefusalRepository
from gateway.texts.repository import TextRepository
from gateway.texts.terms import MOST_DAYS, fingerprint


async def keep_texts(visit: Visit, form: Form) -> Done:
    project = await visit.project(form.get("project", ""))
    visit.require(Right.PROJECTS, project.id)
    days = days_of(form.get("days", ""))
    project.text_days = days or None
    if days:
        await visit.note("project.updated", project.id, project.id, text_days=days)
        return Done(f"Texts of {project.name} are kept for {days} days from now on.")
    erased = await _rows(visit).erase(project.id)
    await visit.note("project.updated", project.id, project.id, text_days=0, erased=erased)
    return Done(f"No text of {project.name} is kept, and the {erased} there were are erased.")


async def erase_texts(visit: Visit, form: Form) -> Done:
    """Of a project, or one of its customers; and what was refused of them."""
    project = await visit.project(form.get("project", ""))
    visit.require(Right.PROJECTS, project.id)
    customer = form.get("customer", "").strip() or None
    erased = await _rows(visit).erase(project.id, customer)
    refused = await RefusalRepository(visit.session, visit.organisation).erase(project.id, customer)
    of = fingerprint(customer) if customer else "everybody"
    await visit.note(
        "project.texts_erased", project.id, project.id, of=of, erased=erased, refused=refused
    )
    whose = "one customer" if customer else project.name
    return Done(f"{erased} texts of {whose} are erased, and {refused} lines of what was refused.")


def days_of(text: str) -> int:
    """Raises InvalidRequest."""
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and int(text) <= MOST_DAYS):
        raise InvalidRequest(f"days {text[:8]!r}: from 0, for none, to {MOST_DAYS}", param="days")
    return int(text)


def _rows(visit: Visit) -> TextRepository:
    return TextRepository(visit.session, visit.organisation)


ACTIONS = {
    "keep-texts": Action(keep_texts, None),
    "erase-texts": Action(erase_texts, None),
}
