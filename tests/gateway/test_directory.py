"""Where engines are looked for: settings, DNS, and Redis, in which real beats are heard."""

import asyncio
import time

import pytest

from engine.beats import Beats
from engine.errors import ConfigError as EngineConfigError
from gateway.config import ConfigError, Secret
from gateway.fleet.beating import Beating
from gateway.fleet.directory import Dns, Services, Several, Static, open_directory
from gateway.fleet.fleet import Fleet
from gateway.fleet.unavailable import DirectoryUnavailable
from tests.fakes.clock import until
from tests.fakes.engine import FakeEngine
from tests.gateway.test_fleet import running
from tests.services import redis_url

__all__ = ["redis_url"]


def beats(url, address, **facts):
    chosen = {"still_s": lambda: 0.0, "leaving": lambda: False, "ttl_s": 0.6} | facts
    return Beats(url, address, **chosen)


async def test_engines_of_the_settings_are_known_at_once_and_never_change():
    directory = open_directory(["unix:/e.sock", "tcp:h:1"], None)
    assert directory.known == ("unix:/e.sock", "tcp:h:1") == await directory.look()
    assert not directory.changes


async def test_dns_tells_every_address_of_a_host():
    directory = open_directory(["dns:localhost:8471", "unix:/e.sock"], None)
    found = await directory.look()
    assert directory.changes
    assert found[0] == "unix:/e.sock"
    assert set(found[1:]) <= {"tcp:127.0.0.1:8471", "tcp:[::1]:8471"}
    assert len(found) > 1
    with pytest.raises(DirectoryUnavailable, match=r"dns:nowhere\.invalid:1"):
        await Dns("nowhere.invalid", 1).look()


async def test_srv_records_tell_hosts_and_ports():
    async def two(name):
        return [("b.example", 2), ("a.example", 1)] if name == "_engine._tcp.x" else []

    assert await Services("_engine._tcp.x", two).look() == ["tcp:a.example:1", "tcp:b.example:2"]


async def test_srv_records_are_asked_of_the_systems_servers(monkeypatch):
    import dns.asyncresolver
    from dns.rrset import from_text

    async def answer(name, kind, lifetime):
        assert (name, kind) == ("_engine._tcp.x", "SRV")
        return from_text("_engine._tcp.x.", 1, "IN", "SRV", "0 5 8471 pod-1.engines.local.")

    monkeypatch.setattr(dns.asyncresolver, "resolve", answer)
    monkeypatch.setattr("gateway.fleet.resolver.resolve", answer, raising=False)
    directory = open_directory(["srv:_engine._tcp.x"], None)
    assert await directory.look() == ("tcp:pod-1.engines.local:8471",)


async def test_a_place_that_is_silent_is_remembered_as_it_was():
    class Moody:
        changes, known, silent = True, (), False

        async def look(self):
            if self.silent:
                raise DirectoryUnavailable("away")
            return ["tcp:a:1"]

    moody = Moody()
    directory = Several([Static(()), moody])
    assert await directory.look() == ("tcp:a:1",)
    moody.silent = True
    assert await directory.look() == ("tcp:a:1",)
    with pytest.raises(DirectoryUnavailable, match="away"):
        await Several([moody]).look()


@pytest.mark.parametrize(
    "entry",
    [
        "http://x",
        "dns:x",
        "dns:x:0",
        "dns::1",
        "srv:",
        "redis:",
        "tcp:h",
        "tcp::1",
        "dns+ssl:h:1",
        "unix:",
    ],
)
def test_an_entry_that_names_no_place_is_refused(entry):
    with pytest.raises(ConfigError, match="engines: "):
        open_directory([entry], None)


async def test_an_engine_is_found_in_redis_while_it_beats_and_no_longer(redis_url):
    directory = Beating.at(Secret(redis_url))
    still = [0.0]
    with beats(redis_url, "tcp:a:1"), beats(redis_url, "tcp:b:2", still_s=lambda: still[0]):
        found = []

        async def sees(*addresses):
            async with asyncio.timeout(5):
                while found != list(addresses):
                    found[:] = sorted(await directory.look())
                    await asyncio.sleep(0.02)

        await sees("tcp:a:1", "tcp:b:2")
        still[0] = 60.0  # its loop hangs: the thread goes on, the beats do not
        await sees("tcp:a:1")
    assert await directory.look() == []  # one that ends takes itself out


async def test_a_redis_that_does_not_answer_is_said(redis_url):
    with pytest.raises(DirectoryUnavailable):
        await Beating.at(Secret("redis://127.0.0.1:1/0")).look()


def test_beats_outlive_a_redis_that_is_away_and_keep_its_password_to_themselves(caplog):
    away = "redis://:hunter2@127.0.0.1:1/0"
    with beats(away, "tcp:a:1"):
        deadline = time.monotonic() + 5
        while "may not find" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)
    assert caplog.text.count("may not find") == 1
    with pytest.raises(EngineConfigError) as refused:
        beats("hunter2://x", "tcp:a:1")
    assert "hunter2" not in caplog.text + str(refused.value)


async def test_a_fleet_follows_its_directory_and_keeps_who_answers(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.fleet.fleet.LOOK_S", 0.05)

    class Listed:
        changes, known, addresses = True, (), ()

        async def look(self):
            return self.addresses

    listed = Listed()
    async with (
        FakeEngine(f"unix:{tmp_path}/a.sock") as staying,
        FakeEngine(f"unix:{tmp_path}/b.sock") as leaving,
        running(Fleet(listed, gateway="g")) as fleet,
    ):
        assert fleet.ready == []
        listed.addresses = (staying.address, leaving.address)
        await until(lambda: len(fleet.ready) == 2)
        listed.addresses = ()  # the directory forgot: both still answer
        await asyncio.sleep(0.3)
        assert len(fleet.ready) == 2
        leaving._server.close()
        leaving.die()
        await until(lambda: len(fleet.members) == 1)
        assert fleet.ready[0].name == staying.address
