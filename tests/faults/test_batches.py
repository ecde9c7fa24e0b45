"""A batch whose gateway and engine are killed at random: each line answered and billed once.

``make test-soak`` kills more often (``KILLS``).
"""

import asyncio
import json
import os
import random
from functools import partial

import pytest
from sqlalchemy import text

from tests.faults.rig import BASE, Rig, running
from tests.services import Postgres

SOAKING = "KILLS" in os.environ
KILLS = int(os.environ.get("KILLS", "2"))
LINES = 60 if SOAKING else 30


def input_lines(count: int, rng: random.Random) -> bytes:
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": BASE,
                "messages": [{"role": "user", "content": f"Hello {number}"}],
                "max_tokens": rng.randrange(1, 40),
                "ignore_eos": True,
            },
        }
        for number in range(count)
    ]
    return "\n".join(map(json.dumps, lines)).encode()


async def billed(rig: Rig) -> dict[str, tuple[int, int, str]]:
    """Request -> (prompt, completion, tier) of every event in the ledger."""
    query = text("SELECT id, prompt_tokens, completion_tokens, tier FROM usage_event")
    async with rig.database() as database, database.reading() as session:
        rows = (await session.execute(query)).all()
    found = {name: (prompt, completion, tier) for name, prompt, completion, tier in rows}
    assert len(found) == len(rows), "an event is in the ledger twice"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite", "postgres"] if SOAKING else ["sqlite"])
async def test_each_line_is_answered_once_and_billed_once_whatever_is_killed(
    tmp_path, backend, request
):
    url = None
    if backend == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        url = await asyncio.to_thread(server.create)
    rng = random.Random(int(os.environ.get("SEED", "1")))
    async with (
        running(tmp_path, database_url=url, batch_concurrency=4, pass_seconds=0.01) as rig,
        rig.client(max_retries=5) as client,
    ):
        kills = 0
        while kills < KILLS:
            sent = await client.files.create(
                file=("in.jsonl", input_lines(LINES, rng)), purpose="batch"
            )
            batch = await client.batches.create(
                input_file_id=sent.id, endpoint="/v1/chat/completions", completion_window="24h"
            )
            before = len(await billed(rig))
            for _ in range(min(6, KILLS - kills)):
                await asyncio.sleep(rng.uniform(0.05, 0.5))
                await rig.kill(rng.choice([rig.gateway, rig.gateway, rig.engine]))
                await rig.ready()
                kills += 1
            await rig.eventually(partial(ended, client, batch.id), "the batch has ended")
            await verify(rig, client, batch.id, before=before)
        assert [str(each) for each in (await rig.reconcile()).differences] == []


async def ended(client, batch: str) -> bool:
    return (await client.batches.retrieve(batch)).status == "completed"


async def verify(rig: Rig, client, batch: str, *, before: int) -> None:
    row = await client.batches.retrieve(batch)
    failed = row.error_file_id and (await client.files.content(row.error_file_id)).text
    assert not failed, failed
    assert (row.request_counts.total, row.request_counts.completed) == (LINES, LINES)
    content = await client.files.content(row.output_file_id)
    lines = [json.loads(line) for line in content.text.splitlines()]
    assert [line["custom_id"] for line in lines] == [f"line-{n}" for n in range(LINES)]
    events = await billed(rig)
    assert len(events) == before + LINES
    for line in lines:
        usage = line["response"]["body"]["usage"]
        told = (usage["prompt_tokens"], usage["completion_tokens"], "batch")
        assert events[line["response"]["request_id"]] == told, line
