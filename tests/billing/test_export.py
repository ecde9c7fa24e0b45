"""A month as FOCUS 1.2: valid, equal to the ledger to the nano-dollar, and never written wrong."""

import hashlib
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.billing.export import Export, Wanted
from gateway.billing.focus_file import as_text
from gateway.errors import BooksDiffer, UnpricedUsage
from gateway.identity.models import Organisation
from gateway.usage.event import Kind
from gateway.usage.record import Outcome
from gateway.usage.repository import LedgerRepository
from gateway.usage.retention import Retention
from gateway.usage.rollups import Rollups
from tests.billing.focus_schema import read, violations
from tests.gateway.test_books import DECEMBER, LATER, NOON, NOVEMBER, Books
from tests.gateway.test_report import event, write


@pytest.fixture
def books(database, tmp_path) -> Books:
    return Books(database, tmp_path)


@pytest.fixture
def export(books, tmp_path):
    async def run(month: date = NOVEMBER, format: str = "focus-csv", **changes):
        wanted = Wanted(period=month, format=format, folder=tmp_path / "bills", issuer="Acme AI",
                        **changes)  # fmt: skip
        manifest = await Export(books.database, LATER).write(wanted)
        return manifest, tmp_path / "bills" / manifest.file

    return run


async def ledger_nano(books, month: date) -> int:
    async with books.database.reading() as session:
        return (await LedgerRepository(session).period_totals(month))["cost_nano"]


def billed(rows) -> int:
    return int(sum(Decimal(row["BilledCost"]) for row in rows) * 10**9)


def by(rows, *names: str):
    return [tuple(row[name] for name in names) for row in rows]


async def test_a_month_is_valid_and_adds_up_to_the_ledger(books, export):
    await books.price("0.0015", since=NOON - timedelta(days=9))  # 1,500 pico-dollars a token
    await books.serve("req_1", "req_2", prompt_tokens=1001, cached_tokens=333, completion_tokens=77)
    await books.serve("req_3", at=NOON - timedelta(days=3))
    await books.serve("req_4", at=NOON + timedelta(days=1))  # December's
    manifest, file = await export()
    rows = read(file)
    assert violations(rows) == []
    assert billed(rows) == manifest.ledger_cost_nano == await ledger_nano(books, NOVEMBER) > 0
    assert Decimal(manifest.billed_cost) * 10**9 == manifest.ledger_cost_nano
    assert manifest.rows == len(rows) == 6  # two days, three meters
    assert manifest.ledger_events == 3
    assert hashlib.sha256(file.read_bytes()).hexdigest() == manifest.sha256
    kept = json.loads(file.with_name(file.name + ".manifest.json").read_text())
    assert kept["sha256"] == manifest.sha256
    assert kept["closed"] is False
    meters = {row["SkuMeter"]: row["PricingQuantity"] for row in rows[3:]}
    assert meters == {
        "Input tokens": "1336.0", "Cached input tokens": "666.0", "Output tokens": "154.0"
    }  # fmt: skip


async def test_a_closed_month_gives_the_same_bytes_whenever_it_is_exported(books, export):
    await books.price("1")
    await books.serve("req_1")
    await books.close(NOVEMBER)
    first, _ = await export()
    await books.serve("req_late")
    await books.price("3")
    await books.reprice()
    again, _ = await export()
    assert first.closed
    assert first.sha256 == again.sha256


async def test_a_price_corrected_within_its_month_leaves_the_right_price_alone(books, export):
    await books.price("1000")
    await books.serve("req_1", "req_2")
    await books.price("1")
    await books.reprice()
    await books.price("2")
    await books.reprice()
    manifest, file = await export()
    rows = read(file)
    assert violations(rows) == []
    assert billed(rows) == 2 * 34_000 == manifest.ledger_cost_nano
    assert {row["ListUnitPrice"] for row in rows} == {"0.000002"}
    assert {row["ChargeClass"] for row in rows} == {""}


async def test_what_changes_after_the_close_is_a_correction_in_the_next_open_month(books, export):
    await books.price("1")
    await books.serve("req_1")
    await books.close(NOVEMBER)
    await books.serve("req_late")
    await books.price("3")
    await books.reprice()
    _, file = await export(DECEMBER)
    rows = read(file)
    assert violations(rows) == []
    assert billed(rows) == await ledger_nano(books, DECEMBER) == 17_000 + 68_000
    assert {row["ChargeClass"] for row in rows} == {"Correction"}
    # req_1 is taken off the wrong price and put on the right one; req_late was never billed
    outputs = [row for row in rows if row["SkuMeter"] == "Output tokens"]
    assert sorted(by(outputs, "ListUnitPrice", "PricingQuantity", "BilledCost")) == [
        ("0.000001", "-7.0", "-0.000007"),
        ("0.000003", "14.0", "0.000042"),
    ]


async def test_requests_without_a_price_stop_the_export_unless_they_are_left_out(books, export):
    await books.serve("req_1")
    with pytest.raises(UnpricedUsage, match="1 requests of 'smol' have no price"):
        await export()
    manifest, file = await export(leave_out_unpriced=True)
    assert (manifest.unpriced_requests, manifest.rows, read(file)) == (1, 0, [])
    await books.price("1")
    await books.reprice()
    manifest, file = await export()
    assert manifest.unpriced_requests == 0
    assert billed(read(file)) == 17_000


async def test_a_month_is_never_left_unpriced_by_a_price_that_came_after_its_close(books, export):
    await books.serve("req_1")
    await books.close(NOVEMBER)
    await books.price("1")
    await books.reprice()
    manifest, file = await export(DECEMBER)
    assert manifest.unpriced_requests == 0
    assert billed(read(file)) == 17_000
    assert violations(read(file)) == []


async def test_what_failed_before_a_token_is_neither_charged_nor_counted(books, export):
    await books.price("1")
    await books.serve("req_1", outcome=Outcome.FAILED, completion_tokens=0)
    manifest, _ = await export()
    assert (manifest.rows, manifest.ledger_events) == (0, 1)


async def test_a_disk_that_refuses_the_manifest_leaves_the_file_before_with_its_own(
    books, export, tmp_path, monkeypatch
):
    await books.price("1")
    await books.serve("req_1")
    await export()
    before = {file.name: file.read_bytes() for file in (tmp_path / "bills").iterdir()}
    await books.serve("req_2")

    def full(path, data):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        await export()
    assert {file.name: file.read_bytes() for file in (tmp_path / "bills").iterdir()} == before


async def test_books_that_differ_leave_no_file(books, export, tmp_path):
    await books.price("1")
    await books.serve("req_1")
    async with books.database.unit_of_work() as session:
        await session.execute(  # what kept days say is not what the charges say
            text(
                "INSERT INTO usage_dropped (day, period, events, cost_nano, dropped_at)"
                " VALUES ('2026-11-02', '2026-11-01', 1, 5, '2026-11-30 00:00:00')"
            )
        )
    with pytest.raises(BooksDiffer, match="17000 nano-dollars and the ledger to 17005"):
        await export()
    assert list((tmp_path / "bills").iterdir()) == []


async def test_a_month_whose_events_went_is_exported_as_before(books, export):
    await books.price("1")
    await books.serve("req_1", prompt_tokens=5, cached_tokens=5)
    await books.price("2")
    await books.reprice()
    await books.close(NOVEMBER)
    await books.price("3")
    await books.reprice()
    november, december = (await export())[0], (await export(DECEMBER))[0]
    await Rollups(books.database).roll_up()
    much_later = datetime(2027, 3, 1, tzinfo=UTC)
    assert NOON.date() in await Retention(books.database, 35, lambda: much_later).drop()
    for before, month in ((november, NOVEMBER), (december, DECEMBER)):
        assert (await export(month))[0].sha256 == before.sha256
    one, _ = await export(organisation="org_1")
    assert one.billed_cost == november.billed_cost


async def test_one_organisation_gets_its_own_charges_alone(books, export):
    await books.price("1")
    await books.serve("req_1")
    async with books.database.reading() as session:
        [price] = await LedgerRepository(session).prices()
    await write(books.database, event(NOON, organisation_id="org_2", price_id=price.id))
    manifest, file = await export(organisation="org_1")
    assert by(read(file), "BillingAccountId") == [("org_1",)] * 3
    assert manifest.ledger_events == 1
    everybody, _ = await export()
    assert everybody.ledger_events == 2


async def test_names_come_out_as_they_are_and_break_no_row(books, export):
    name = '=1+1, "Sons"; \r\nof \u05e9\u05dc\u05d5\u05dd \u202eX\t'
    await books.price("1")
    await books.serve("req_1")
    async with books.database.unit_of_work() as session:
        session.add(Organisation(id="org_1", name=name, created_at=NOON))
    manifest, file = await export()
    rows = read(file)
    assert violations(rows) == []
    assert by(rows, "BillingAccountName") == [(name,)] * 3
    assert billed(rows) == manifest.ledger_cost_nano == await ledger_nano(books, NOVEMBER)


async def test_parquet_holds_the_same_rows_as_exact_decimals(books, export):
    parquet = pytest.importorskip("pyarrow.parquet")
    await books.price("0.0015")
    await books.serve("req_1", "req_2")
    rows = read((await export())[1])
    manifest, file = await export(format="focus-parquet")
    table = parquet.read_table(file)
    assert table.column_names == list(rows[0])
    assert str(table.schema.field("BilledCost").type) == "decimal128(38, 12)"
    kept = [as_text(row["BilledCost"]) for row in table.to_pylist()]
    assert kept == [row["BilledCost"] for row in rows]
    assert manifest.rows == len(rows)


async def test_storage_is_charged_by_gibibytes_and_hours(books, export):
    await books.price("1")
    async with books.database.reading() as session:
        [price] = await LedgerRepository(session).prices()
    stored = {"kind": Kind.STORAGE, "prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0,
              "input_nano": 0, "cached_nano": 0, "output_nano": 0}  # fmt: skip
    await write(
        books.database,
        event(NOON, **stored, storage_byte_hours=3 * 2**29, storage_nano=0, cost_nano=0,
              price_id=price.id, adapter_id="adp_1"),
    )  # fmt: skip
    _, file = await export()
    rows = read(file)
    assert violations(rows) == []
    assert by(rows, "SkuMeter", "PricingQuantity", "PricingUnit", "ResourceType") == [
        ("Adapter storage", "1.5", "GiB-Hours", "Adapter")
    ]
