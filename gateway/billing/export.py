"""A month of the ledger as a file that others bill from, with a manifest that says what is in it.

Day by day, in one transaction that sees one instant. What the file adds up to is held against the
ledger's own sum before it takes its name: a file that is there is the ledger. A closed month gives
the same file whenever it is exported; an open one gives what there is by now.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import msgspec

from gateway.billing.focus import CURRENCY, VERSION, Column, Focus, Row
from gateway.billing.focus_file import FORMATS, FocusFile, plain
from gateway.billing.names_repository import NamesRepository
from gateway.db import Database
from gateway.errors import BooksDiffer, InvalidRequest, UnpricedUsage
from gateway.usage.charge_repository import ChargeRepository
from gateway.usage.charges import Charges
from gateway.usage.event import next_month
from gateway.usage.repository import LedgerRepository

BLOCK = 1 << 20  # bytes hashed at once

Watch = Callable[[int, int], None]  # days done, of how many


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    period: date  # first day of the month
    format: str
    folder: Path
    issuer: str
    organisation: str | None = None  # its id; None: everybody
    leave_out_unpriced: bool = False


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Beside the file, as JSON. Sums are exact decimals, in strings."""

    file: str
    format: str
    focus_version: str
    period: str
    closed: bool  # whether nothing enters the month any more
    exported_at: str
    issuer: str
    organisation: str | None
    rows: int
    bytes: int
    sha256: str
    currency: str
    billed_cost: str  # the sum of BilledCost
    ledger_cost_nano: int  # the same, as the ledger has it
    ledger_events: int
    unpriced_requests: int  # left out
    columns: list[str]


@dataclass(slots=True)
class Sums:
    rows: int = 0
    nano: int = 0
    ledger_nano: int = 0
    ledger_events: int = 0
    unpriced: dict[str, int] = field(default_factory=dict)  # base model -> requests


class Export:
    """Belongs to one command."""

    def __init__(self, database: Database, now: datetime) -> None:
        self._database = database
        self._now = now

    async def write(self, wanted: Wanted, watch: Watch = lambda done, of: None) -> Manifest:
        """Raises InvalidRequest, UnpricedUsage, or BooksDiffer; then there is no file."""
        if wanted.format not in FORMATS:
            raise InvalidRequest(f"format {wanted.format!r}: one of {', '.join(FORMATS)}",
                                 param="format")  # fmt: skip
        ending, kind = FORMATS[wanted.format]
        path = wanted.folder / f"{_stem(wanted)}.{ending}"
        wanted.folder.mkdir(parents=True, exist_ok=True)
        draft, about = (
            path.with_name(f".{path.name}.{each}{os.getpid()}") for each in ("", "manifest.")
        )
        try:
            with kind(draft) as file:
                sums, closed = await self._fill(file, wanted, watch)
            manifest = self._manifest(wanted, path, draft, sums, closed)
            about.write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
            draft.replace(path)
            about.replace(path.with_name(f"{path.name}.manifest.json"))
        finally:
            draft.unlink(missing_ok=True)
            about.unlink(missing_ok=True)
        return manifest

    async def _fill(self, file: FocusFile, wanted: Wanted, watch: Watch) -> tuple[Sums, bool]:
        sums = Sums()
        async with self._database.reading() as session:
            focus = Focus(await NamesRepository(session).names(), wanted.issuer)
            rows = ChargeRepository(session)
            days = await rows.days(next_month(wanted.period))
            for done, day in enumerate(days):
                watch(done, len(days))
                charges = _of(await rows.of_day(day), wanted)
                written = _rows(focus, charges, sums)
                file.write(written)
                events, nano = await rows.total(day, wanted.period, wanted.organisation)
                sums.ledger_events += events
                sums.ledger_nano += nano
            if sums.unpriced and not wanted.leave_out_unpriced:
                raise UnpricedUsage(_unpriced(sums))
            watch(len(days), len(days))
            closed = await LedgerRepository(session).closed_periods()
        if sums.nano != sums.ledger_nano:
            raise BooksDiffer(
                f"{wanted.period:%Y-%m}: the export adds up to {sums.nano} nano-dollars and the "
                f"ledger to {sums.ledger_nano}; nothing was written. `loratorio reconcile` says "
                "where the books differ"
            )
        return sums, wanted.period in {row.period for row in closed}

    def _manifest(
        self, wanted: Wanted, path: Path, draft: Path, sums: Sums, closed: bool
    ) -> Manifest:
        return Manifest(
            file=path.name,
            format=wanted.format,
            focus_version=VERSION,
            period=f"{wanted.period:%Y-%m}",
            closed=closed,
            exported_at=self._now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            issuer=wanted.issuer,
            organisation=wanted.organisation,
            rows=sums.rows,
            bytes=draft.stat().st_size,
            sha256=_sha256(draft),
            currency=CURRENCY,
            billed_cost=plain(Decimal(sums.nano).scaleb(-9)),
            ledger_cost_nano=sums.ledger_nano,
            ledger_events=sums.ledger_events,
            unpriced_requests=sum(sums.unpriced.values()),
            columns=list(Column),
        )


def _of(charges: Charges, wanted: Wanted) -> Charges:
    return {
        key: charges[key]
        for key in sorted(charges)
        if key.period == wanted.period and wanted.organisation in (None, key.organisation_id)
    }


def _rows(focus: Focus, charges: Charges, sums: Sums) -> Sequence[Row]:
    """What they come to is counted from the rows themselves."""
    billed = list(Column).index(Column.BILLED_COST)
    found: list[Row] = []
    for key, charge in charges.items():
        if key.price_id:
            found += focus.rows(key, charge)
        elif not key.is_correction:  # else its price came later, and this takes nothing off
            sums.unpriced[key.base_model] = sums.unpriced.get(key.base_model, 0) + charge.requests
    sums.rows += len(found)
    for row in found:
        cost = row[billed]
        assert isinstance(cost, Decimal), "every row has its cost"
        sums.nano += int(cost.scaleb(9))
    return found


def _unpriced(sums: Sums) -> str:
    model, requests = next(iter(sums.unpriced.items()))
    return (
        f"{requests} requests of {model!r} have no price and would be missing from the bill: set "
        "one with `loratorio price set … --from TIME` and charge them with `loratorio price "
        "reprice`, or give --leave-out-unpriced"
    )


def _stem(wanted: Wanted) -> str:
    whose = f"-{wanted.organisation}" if wanted.organisation else ""
    return f"focus-{VERSION}-{wanted.period:%Y-%m}{whose}"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
