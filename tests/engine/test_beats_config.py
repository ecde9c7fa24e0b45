"""An engine that gateways are to find says an address that they can reach."""

import pytest

from engine.cli import parse
from engine.errors import ConfigError


def config(*flags):
    return parse(["serve", "--model", "m", *flags]).config


@pytest.mark.parametrize("listen", ["unix:e.sock", "tcp:0.0.0.0:8471", "tcp:[::]:8471"])
def test_an_address_that_says_nothing_elsewhere_is_refused(listen):
    flags = ("--listen", listen, "--register", "redis://r:6379/0")
    with pytest.raises(ConfigError, match="advertise"):
        config(*flags)
    assert config(*flags, "--advertise", "tcp:h:8471").advertise == "tcp:h:8471"
    assert config(*flags[2:], "--listen", "tcp:h:8471").advertise is None


def test_an_address_with_a_password_may_lie_in_a_file_and_is_not_shown(tmp_path):
    file = tmp_path / "redis"
    file.write_text("redis://:hunter2@r:6379/0\n")
    found = config("--listen", "tcp:h:1", "--register", f"@{file}")
    assert found.register == "redis://:hunter2@r:6379/0"
    assert "hunter2" not in repr(found)
    with pytest.raises(ConfigError, match="cannot be read"):
        config("--listen", "tcp:h:1", "--register", f"@{file}x")
