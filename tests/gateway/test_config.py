"""Settings are checked once, travel as JSON, and show no secret."""

import json
from pathlib import Path

import pytest

from gateway.config import ConfigError, DataDir, Secret, Settings


def settings(**changes) -> Settings:
    facts = {
        "data_dir": Path("/data"),
        "model_dir": Path("/model"),
        "served_model_name": "smol",
        "engines": ("unix:/run/e.sock",),
    }
    return Settings(**facts | changes)


def said(**changes):
    """As somebody wrote them."""
    return json.dumps(json.loads(settings().to_json()) | changes).encode()


def test_settings_survive_json_with_their_secrets():
    given = settings(
        database_url=Secret("postgresql://u:hunter2@h/d"), pepper=Secret("ab" * 32), port=0
    )
    assert Settings.from_json(given.to_json()) == given


def test_no_repr_shows_a_secret():
    given = settings(database_url=Secret("postgresql://u:hunter2@h/d"))
    assert "hunter2" not in repr(given) + str(given) + str(given.database_url)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"port": 65536}, "port=65536"),
        ({"engines": ()}, "engine address"),
        ({"served_model_name": ""}, "served_model_name"),
        ({"served_model_name": "a\nb"}, "served_model_name"),
        ({"max_body_bytes": 0}, "max_body_bytes=0"),
        ({"key_environment": "admin"}, "reserved"),
        ({"key_environment": "a-b"}, "key_environment"),
        ({"open": True, "host": "0.0.0.0"}, "loopback"),
        ({"open": True, "host": "example.org"}, "loopback"),
    ],
)
def test_what_cannot_work_is_refused_by_name(changes, said):
    with pytest.raises(ConfigError, match=said):
        settings(**changes)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_open_is_allowed_on_loopback(host):
    assert settings(open=True, host=host).open


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "not JSON"),
        (b"{}", "data_dir"),
        (settings().to_json().replace(b"8000", b'"8000"'), "port"),
        (said(redis_ulr="redis://r"), "no 'redis_ulr'; did you mean 'redis_url'"),
        (settings().to_json().replace(b'"workers"', b'"work\xff"'), "not JSON"),
        (said(other_bases=[{"name": "b", "model_dir": "/m", "spec": "/s"}]), "other_bases.*'spec'"),
        (said(database_url=5), r"expected a string or .*database_url"),
        (said(database_url={"fil": "hunter2"}), r"expected a string or .*database_url"),
        (said(model_dir=5), r"expected a path .*model_dir"),
        (said(alert_webhook_url="https://["), "alert_webhook_url='https://\\['"),
        (said(alert_webhook_url="https://h:99999"), "alert_webhook_url"),
        (said(allowed_origins=["https://["]), "allowed_origins"),
    ],
)
def test_a_broken_settings_file_names_the_field(text, said):
    with pytest.raises(ConfigError, match=said):
        Settings.from_json(text)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (None, "sqlite+aiosqlite:////d/loratorio.db"),
        ("postgres://h/x", "postgresql+asyncpg://h/x"),
        ("postgresql://h/x", "postgresql+asyncpg://h/x"),
        ("postgresql+asyncpg://h/x", "postgresql+asyncpg://h/x"),
        ("sqlite:///x.db", "sqlite+aiosqlite:///x.db"),
    ],
)
def test_database_urls_get_their_asynchronous_driver(given, url):
    assert DataDir(Path("/d")).database(Secret(given) if given else None) == url


def test_another_database_is_refused_without_showing_the_url():
    with pytest.raises(ConfigError) as refusal:
        DataDir(Path("/d")).database(Secret("mysql://u:hunter2@h/d"))
    assert "hunter2" not in str(refusal.value)
