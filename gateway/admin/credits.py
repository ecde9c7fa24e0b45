"""``/credits``: what an organisation has paid in advance, and what came of it.

Nobody fills the own purse: credit is granted by an administrator of the operator's organisation,
which the server's settings name, or by ``loratorio credit grant``.
"""

from datetime import timedelta

from fastapi import APIRouter
from starlette.requests import Request

from gateway.admin.desk import AdminDesk, body_of, integer_of, text_of
from gateway.admin.money import require_one_amount
from gateway.admin.paths import ROOT
from gateway.admin.shapes import NANO_PER_CENT, Json, page, seconds
from gateway.errors import InvalidRequest, MissingParameter
from gateway.identity.rights import Right
from gateway.limits.models import MOST_NANO, Credit
from gateway.limits.repository import LimitRepository
from gateway.limits.service import LimitService

PREPAID = "prepaid"
LONGEST_S = 10**10


def add_credits(router: APIRouter, desk: AdminDesk) -> None:
    @router.get(ROOT + "/credits", **desk.needs(Right.READ))
    async def list_credits(request: Request, after: str | None = None, limit: int = 20) -> Json:
        async with desk.reading(request) as visit:
            rows = LimitRepository(visit.session, visit.who.organisation)
            return page([_shown(row) for row in await rows.credits()], after, limit)

    @router.post(ROOT + "/credits", **desk.needs(Right.SPENDING))
    async def grant_credit(request: Request) -> Json:
        body = await body_of(request)
        nano, note = _amount(body), text_of(body, "note") if "note" in body else ""
        expires_s = integer_of(body, "expires_in_seconds")
        if expires_s is not None and not 0 < expires_s < LONGEST_S:
            raise InvalidRequest(
                f"expires_in_seconds is {expires_s}; it must be between 1 and {LONGEST_S - 1}",
                param="expires_in_seconds",
            )
        whose = text_of(body, "organization_id") if "organization_id" in body else None
        async with desk.granting(request, whose) as visit:
            owner = await visit.rows.own()
            assert owner is not None, "it is there, or nobody visits it"
            owner.billing = PREPAID
            expires_at = visit.now + timedelta(seconds=expires_s) if expires_s else None
            service = LimitService(visit.session, owner.id, visit.now)
            row = service.grant(nano, note=note, expires_at=expires_at)
            await visit.note(
                "credit.granted", row.id, amount_nano=nano, expires_at=seconds(expires_at)
            )
            return _shown(row)


def _amount(body: Json) -> int:
    """Nano-dollars. Raises InvalidRequest."""
    cents, nano = integer_of(body, "amount"), integer_of(body, "amount_nano_usd")
    name, unit = ("amount", NANO_PER_CENT) if nano is None else ("amount_nano_usd", 1)
    given = cents if nano is None else nano
    if given is None:
        raise MissingParameter("amount must be given, in cents; or amount_nano_usd", param=name)
    if body.get("currency", "USD") != "USD":
        raise InvalidRequest("currency must be 'USD'", param="currency")
    require_one_amount("amount", cents, name, nano)
    if not 1 <= given <= MOST_NANO // unit:
        raise InvalidRequest(
            f"{name} is {given}; it must be between 1 and {MOST_NANO // unit}", param=name
        )
    return given * unit


def _shown(row: Credit) -> Json:
    return {
        "id": row.id,
        "object": "organization.credit",
        "currency": "USD",
        "amount_nano_usd": row.amount_nano,
        "lapsed_nano_usd": row.lapsed_nano,
        "note": row.note,
        "granted_at": seconds(row.granted_at),
        "expires_at": seconds(row.expires_at),
    }
