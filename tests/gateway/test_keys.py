"""API keys: their shape, their checksum, and one refusal for everything that does not work."""

import stat
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ConfigError, Secret
from gateway.errors import Unauthenticated
from gateway.identity import keys
from gateway.identity.directory import KeyDirectory, KeyEntry
from gateway.identity.pepper import Peppers
from gateway.identity.principal import Principal

NOW = datetime(2026, 11, 30, tzinfo=UTC).timestamp()
PEPPERS = Peppers.parse("1:" + "11" * 32, "test")


def holder(key: keys.Key, *, admin: bool = False) -> Principal:
    return Principal(
        organisation="org_1",
        project="prj_1",
        project_name="acme",
        key=key.id,
        tenant="t",
        admin=admin,
    )


def entry(key: keys.Key, *, expires_at: float | None = None, admin: bool = False) -> KeyEntry:
    return KeyEntry(
        principal=holder(key, admin=admin),
        hash=key.hash(PEPPERS[1]),
        pepper_version=1,
        expires_at=expires_at,
    )


@pytest.mark.parametrize("environment", ["live", "test", "admin"])
def test_a_generated_key_parses_and_tells_its_public_parts(environment):
    key = keys.generate(environment)
    prefix, name, public, rest = key.text.split("-")
    assert (prefix, name, len(public), len(rest)) == ("sk", environment, 22, 38)
    assert keys.parse(key.text) == key
    assert key.id == f"key_{public}"
    assert key.last4 == key.text[-4:]
    assert key.is_admin == (environment == "admin")


def test_keys_are_all_different():
    assert len({keys.generate("live").text for _ in range(1000)}) == 1000


def test_no_repr_shows_a_key_or_its_hash():
    key = keys.generate("live")
    shown = repr(key) + repr(entry(key)) + repr(PEPPERS)
    assert key.text not in shown
    assert key.hash(PEPPERS[1]) not in shown
    assert PEPPERS[1].hex() not in shown
    assert "\\x11" not in shown


@given(st.data())
def test_one_wrong_character_is_noticed(data):
    text = keys.generate("live").text
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(keys.BASE62 + "-").filter(lambda c: c != text[place]))
    assert keys.parse(text[:place] + other + text[place + 1 :]) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "EMPTY",
        "sk-",
        "' OR '1'='1",
        "sk-live-" + "0" * 22 + "-" + "0" * 38,
        "sk-live-" + "é" * 22 + "-" + "0" * 38,
        "sk-live-" + "0" * 10_000_000,
        "a" * 64,
        keys.generate("live").text + "\n",
        " " + keys.generate("live").text,
        keys.generate("live").text[:-1],
        keys.generate("live").text.lower(),
        keys.generate("live").hash(b"p" * 32),
    ],
    ids=[
        "nothing",
        "EMPTY",
        "prefix",
        "injection",
        "zeros",
        "not ascii",
        "10 MB",
        "hex",
        "newline after",
        "space before",
        "cut short",
        "lower case",
        "hash",
    ],
)
def test_junk_is_refused_before_any_hash(text):
    assert keys.parse(text) is None


def test_a_valid_key_gives_its_principal():
    key = keys.generate("live")
    directory = KeyDirectory([entry(keys.generate("live")), entry(key)], PEPPERS)
    assert directory.authenticate(key.text, NOW) == holder(key)


def refusals() -> dict[str, tuple[KeyDirectory, str]]:
    known, stranger, admin = keys.generate("live"), keys.generate("live"), keys.generate("admin")
    same_id = keys.Key(known.text, "live", known.public)
    forged = f"sk-live-{known.public}-{'a' * 32}"
    forged += keys._checksum(forged)
    assert keys.parse(forged) is not None
    return {
        "malformed": (KeyDirectory([entry(known)], PEPPERS), "EMPTY"),
        "unknown": (KeyDirectory([entry(known)], PEPPERS), stranger.text),
        "expired": (KeyDirectory([entry(known, expires_at=NOW)], PEPPERS), known.text),
        "revoked": (KeyDirectory([], PEPPERS), known.text),
        "other_secret": (KeyDirectory([entry(same_id)], PEPPERS), forged),
        "other_pepper": (
            KeyDirectory([entry(known)], Peppers.parse("1:" + "22" * 32, "test")),
            known.text,
        ),
        "unknown_pepper": (
            KeyDirectory([entry(known)], Peppers.parse("2:" + "11" * 32, "test")),
            known.text,
        ),
        "admin_as_project": (KeyDirectory([entry(admin)], PEPPERS), admin.text),
    }


@pytest.mark.parametrize("case", refusals())
def test_every_refusal_is_the_same(case):
    directory, text = refusals()[case]
    with pytest.raises(Unauthenticated) as refusal:
        directory.authenticate(text, NOW)
    assert refusal.value.body() == Unauthenticated().body()
    assert text not in str(refusal.value.body())


def test_a_key_works_until_the_moment_it_expires():
    key = keys.generate("live")
    directory = KeyDirectory([entry(key, expires_at=NOW + 1)], PEPPERS)
    assert directory.authenticate(key.text, NOW + 0.999).key == key.id
    with pytest.raises(Unauthenticated):
        directory.authenticate(key.text, NOW + 1)


def test_keys_hashed_with_an_older_pepper_go_on_working():
    old, new = keys.generate("live"), keys.generate("live")
    both = Peppers.parse("1:" + "11" * 32 + "\n2:" + "22" * 32, "test")
    later = KeyEntry(
        principal=holder(new), hash=new.hash(both[2]), pepper_version=2, expires_at=None
    )
    directory = KeyDirectory([entry(old), later], both)
    assert both.current == 2
    assert directory.authenticate(old.text, NOW).key == old.id
    assert directory.authenticate(new.text, NOW).key == new.id


def test_the_pepper_is_made_once_and_private(tmp_path):
    file = tmp_path / "data" / "pepper"
    first, second = Peppers.load(None, file), Peppers.load(None, file)
    assert first.versions == second.versions
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["pepper"]


def test_a_given_pepper_goes_before_the_file(tmp_path):
    peppers = Peppers.load(Secret("ab" * 32), tmp_path / "pepper")
    assert peppers[peppers.current] == bytes.fromhex("ab" * 32)
    assert not (tmp_path / "pepper").exists()


@pytest.mark.parametrize("text", ["", "zz", "1:abcd", "x:" + "ab" * 32, "1:" + "xy" * 32])
def test_a_broken_pepper_is_named_not_shown(text):
    with pytest.raises(ConfigError) as refusal:
        Peppers.parse(text, "the/file")
    assert "the/file" in str(refusal.value)
    assert not text or text not in str(refusal.value)
