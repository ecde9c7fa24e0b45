"""What a server says when it answers: a file for programs, a few lines for people."""

import os
from pathlib import Path

import msgspec

from gateway.bootstrap import DemoLogin, Tenant


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``--ready-file``. Holds keys: readable by its owner alone."""

    base_url: str
    dashboard_url: str
    metrics_url: str
    admin_key: str
    base_model: str
    tenants: list[Tenant]
    logins: list[DemoLogin] = []  # of the demo: who may sign in to the dashboard


def write_private(path: Path, content: bytes) -> None:
    """Replace a file in one step, mode 0600: it is complete or as it was."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    partial.replace(path)


def write_ready(path: Path, ready: Ready) -> None:
    write_private(path, msgspec.json.format(msgspec.json.encode(ready)) + b"\n")


def banner(ready: Ready) -> str:
    """How to call the server, for copying."""
    tenants = "\n".join(
        f"    {tenant.name:10} {tenant.api_key}\n{'':15}{', '.join(tenant.models)}"
        for tenant in ready.tenants
    )
    people = "\n".join(f"    {each.email:14} {each.password}  {each.may}" for each in ready.logins)
    door = (
        f"\n\n  Sign in to the dashboard as\n{people}"
        if people
        else "\n\n  To sign in to the dashboard: loratorio user add YOU@EXAMPLE.COM --operator"
    )
    first = ready.tenants[0]
    model = first.models[0]
    return f"""
  Dashboard  {ready.dashboard_url}
  API        {ready.base_url}
  Metrics    {ready.metrics_url}
  Chat       {ready.base_url.removesuffix("v1")}

  Projects, their keys and models
{tenants}{door}

  Try it:
    curl {ready.base_url}/chat/completions -H 'Content-Type: application/json' \\
      -H 'Authorization: Bearer {first.api_key}' \\
      -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
"""
