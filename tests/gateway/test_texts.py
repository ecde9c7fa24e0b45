"""Texts of requests: none unless a project wants them, for its days, and erased when it says so."""

import logging
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from gateway.identity.models import Project
from gateway.identity.service import IdentityService
from gateway.texts import keeper as keeper_module
from gateway.texts.exchange import Exchange
from gateway.texts.keeper import CUT, MOST_TEXT, TextKeeper, storable
from gateway.texts.models import RequestText
from gateway.texts.repository import TextRepository
from tests.gateway.serving import BASE, KEY, OTHER_KEY, serving

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
SECRET = "quick brown fox"


@dataclass
class Kept:
    exchanges: list[Exchange] = field(default_factory=list)

    def keep(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)


def ask(client, stream=False):
    said = [{"role": "user", "content": f"The {SECRET}"}]
    return client.chat.completions.create(model=BASE, messages=said, max_tokens=40, user="ada",
                                          stream=stream)  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_asked_and_answered_is_kept_for_who_wants_it_alone(tmp_path, stream, caplog):
    kept = Kept()
    caplog.set_level(logging.DEBUG)
    async with serving(tmp_path, texts=kept) as server:
        server.snapshot.keys[KEY] = replace(server.snapshot.keys[KEY], text_days=7)
        server.say("jumps over the lazy dog")
        for key in (KEY, OTHER_KEY):
            answer = await ask(server.client(key), stream)
            if stream:
                async for _ in answer:
                    pass
        (one,) = kept.exchanges
        assert (one.project, one.customer, one.days) == ("prj_acme", "ada", 7)
        assert one.answers == ["jumps over the lazy dog"]
        prompt = server.tokenizer.text(one.prompts[0])
        assert prompt.endswith(f"user\nThe {SECRET}<|im_end|>\n<|im_start|>assistant\n")
        assert SECRET not in repr(one)
        assert SECRET not in server.metrics.text().decode()
    ours = [r.getMessage() for r in caplog.records if r.name.startswith(("gateway", "uvicorn"))]
    assert SECRET not in "".join(ours)


async def made(database, *names: str) -> dict[str, Project]:
    """Projects that want texts for a week."""
    async with database.publish() as session:
        rows = {}
        for name in names:
            rows[name] = await IdentityService(session, NOW).create_project(name, f"org-{name}")
            rows[name].text_days = 7
        return rows


def exchange(project: Project, number: int = 1, **changes) -> Exchange:
    facts = {
        "request": f"req_{number:032x}", "organisation": project.organisation_id,
        "project": project.id, "customer": "", "base": BASE, "prompts": [[1, 2]],
        "answers": ["yes", "no"], "ended_at": NOW, "days": 7,
    }  # fmt: skip
    return Exchange(**facts | changes)


def keeping(database) -> TextKeeper:
    return TextKeeper(database, lambda base, tokens: f"{base}:{tokens}")


async def all_of(database) -> dict[str, RequestText]:
    async with database.reading() as session:
        return {row.request_id: row for row in await session.scalars(select(RequestText))}


async def test_texts_are_found_by_their_own_tenant_until_their_days_are_over(database):
    one, two = (await made(database, "acme", "globex")).values()
    keeper = keeping(database)
    keeper.keep(exchange(one))
    keeper.keep(exchange(two, 2))
    await keeper.flush()
    async with database.reading() as session:
        mine = TextRepository(session, one.organisation_id)
        found = await mine.one("req_" + "0" * 31 + "1", NOW)
        assert (found.prompt, found.answer) == ("tiny:[1, 2]", "yes\n\nno")
        assert found.expires_at == NOW + timedelta(days=7)
        assert await mine.one("req_" + "0" * 31 + "2", NOW) is None
        assert await mine.one(found.request_id, NOW + timedelta(days=8)) is None
        assert await mine.counts() == {one.id: 1}
    assert await keeper.sweep(NOW + timedelta(days=6)) == 0
    assert await keeper.sweep(NOW + timedelta(days=7)) == 2
    assert await all_of(database) == {}


async def test_a_project_that_stopped_has_nothing_written_any_more(database):
    projects = await made(database, "acme")
    keeper = keeping(database)
    keeper.keep(exchange(projects["acme"]))
    async with database.publish() as session:
        (await session.get(Project, projects["acme"].id)).text_days = None
    await keeper.flush()
    keeper.keep(exchange(projects["acme"], 2))
    await keeper.flush()
    assert await all_of(database) == {}


async def test_erasing_takes_one_customer_or_all_and_nobody_elses(database):
    one, two = (await made(database, "acme", "globex")).values()
    keeper = keeping(database)
    for number, (project, customer) in enumerate(
        [(one, "ada"), (one, "ada"), (one, "bob"), (one, ""), (two, "ada")]
    ):
        keeper.keep(exchange(project, number, customer=customer))
    await keeper.flush()
    async with database.publish() as session:
        rows = TextRepository(session, one.organisation_id)
        assert await rows.erase(two.id) == 0
        assert await rows.erase(one.id, "ada") == 2
    left = [(row.project_id, row.user_id) for row in (await all_of(database)).values()]
    assert sorted(left) == sorted([(one.id, "bob"), (one.id, ""), (two.id, "ada")])
    async with database.publish() as session:
        assert await TextRepository(session, one.organisation_id).erase(one.id) == 2
    assert len(await all_of(database)) == 1


async def test_a_line_that_is_answered_again_keeps_its_last_answer(database):
    projects = await made(database, "acme", "globex")
    keeper = keeping(database)
    for answer, project in (("first", "acme"), ("second", "acme"), ("forged", "globex")):
        keeper.keep(exchange(projects[project], answers=[answer]))
        await keeper.flush()
    (row,) = (await all_of(database)).values()
    assert row.answer == "second"


async def test_while_the_database_is_away_texts_wait_and_no_more_than_fit(
    database, monkeypatch, caplog
):
    projects = await made(database, "acme")
    monkeypatch.setattr(keeper_module, "MOST_TOKENS", 5)
    keeper = keeping(database)
    for number in range(4):
        keeper.keep(exchange(projects["acme"], number))
    await keeper.flush()
    assert len(await all_of(database)) == 2
    assert "2 texts were not kept" in caplog.text
    keeper.keep(exchange(projects["acme"], 9))
    await keeper.flush()
    assert len(await all_of(database)) == 3


def test_any_text_can_be_stored():
    assert storable("a\0b\ud800c") == "a�b?c"
    assert storable("x" * (MOST_TEXT + 1)) == "x" * MOST_TEXT + CUT
