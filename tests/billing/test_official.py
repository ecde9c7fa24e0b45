"""The files of a month are valid by FOCUS's own validator, in an environment of its own.

``make test-focus`` names where that lies, and a Python of 3.12 or newer, which the validator wants.
Its rules for 1.2 come with it; those of newer versions it would fetch, so they are not tried.
"""

import os
import re
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.billing.export import Export, Wanted
from gateway.billing.focus_file import FORMATS
from gateway.db import Database
from tests.billing.test_export import Books
from tests.environments import environment
from tests.gateway.test_books import DECEMBER, LATER, NOON, NOVEMBER
from tests.services import migrate

CACHE = os.environ.get("FOCUS")
RULES = "1.2.0.1"
HOLDS = (
    "ACCOUNT_NAMING_SUPPORTED,PUBLIC_PRICE_LIST_SUPPORTED,USAGE_MEASUREMENT_SUPPORTED,"
    "UNIT_PRICING_SUPPORTED,SUB_ACCOUNT_SUPPORTED,RESOURCE_TYPE_ASSIGNMENT_SUPPORTED"
)
TOTAL = re.compile(r"Total: (\d+) \| Pass: (\d+) \| Fail: (\d+)")
FAILED = re.compile(r"(\S+): FAIL")
# InvoiceId must be null where there is no invoice (004), and must not be where there is (005): the
# validator asks both of every row, so one fails whatever a file says.
CONTRADICTED = {"InvoiceId-C-004-C"}
SECONDS = 600.0
pytestmark = pytest.mark.skipif(CACHE is None, reason="make test-focus runs these")


@pytest.fixture
async def books(tmp_path):
    url = f"sqlite+aiosqlite:///{tmp_path / 'books.db'}"
    await migrate(url)
    database = Database(url)
    books = Books(database, tmp_path)
    long_ago = NOON - timedelta(days=9)
    await books.price("0.0015", since=long_ago)
    await books.serve("req_1", "req_2", prompt_tokens=1001, cached_tokens=333, completion_tokens=77)
    await books.serve("req_3", at=NOON - timedelta(days=2), prompt_tokens=123_456_789)
    await books.close(NOVEMBER)
    await books.serve("req_late")
    await books.price("3", since=long_ago)
    await books.reprice()  # corrections, in December
    await books.serve("req_5", at=NOON + timedelta(days=2), prompt_tokens=7)
    yield books
    await database.close()


@pytest.mark.parametrize("month", [NOVEMBER, DECEMBER], ids=["closed", "with-corrections"])
@pytest.mark.parametrize("format", FORMATS)
async def test_the_validator_finds_nothing_but_the_rule_that_contradicts_its_neighbour(
    books, tmp_path, month, format
):
    wanted = Wanted(period=month, format=format, folder=tmp_path, issuer="Acme AI")
    manifest = await Export(books.database, LATER).write(wanted)
    assert manifest.rows > 0
    report = validated(tmp_path / manifest.file)
    found = TOTAL.search(report)
    assert found, report[-2000:]
    total, passed, failed = map(int, found.groups())
    print(found[0])  # noqa: T201  for -s and -rP
    assert set(FAILED.findall(report)) == CONTRADICTED
    assert failed == len(CONTRADICTED)
    assert (total > 500, passed > 200) == (True, True)


def validated(file: Path) -> str:
    """What the validator says; it looks for its currencies beside where it is started."""
    cache = Path(CACHE or "").expanduser().resolve()
    cache.mkdir(parents=True, exist_ok=True)
    python = environment(
        Path(__file__).parent / "requirements" / "focus.txt",
        cache,
        python=shutil.which(os.environ.get("FOCUS_PYTHON", "python3.12")),
    )
    [packages] = python.parent.parent.glob("lib/python*/site-packages")
    command = [python.parent / "focus-validator", "--data-file", str(file), "--block-download"]
    more = ["--validate-version", RULES, "--show-violations", "--applicability-criteria", HOLDS]
    done = subprocess.run(
        [*map(str, command), *more], cwd=packages, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
