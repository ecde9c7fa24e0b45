"""The operator's commands: ``loratorio tenant|key|adapter|credit|price|period|usage|apply…``.

They write the database directly; running gateways see every change within a second. Answers go to
standard output as a table, or as JSON with ``--json``. What is wrong is said in one line on
standard error, with exit code 1 (2 for wrong usage).
"""

from collections.abc import Callable

from gateway.cli import adapters, apply, credits, keys, tenants, usage
from gateway.cli.desk import Commands

GROUPS: dict[str, tuple[Callable[[Commands], None], str]] = {
    "tenant": (tenants.add, "create, list and revoke tenants"),
    "key": (keys.add, "create, list and revoke API keys"),
    "adapter": (adapters.add, "create, list and revoke a tenant's adapters"),
    "credit": (credits.add, "grant and list credit that was paid in advance"),
    "price": (usage.add_prices, "set, list and correct prices"),
    "period": (usage.add_periods, "close and list billing months"),
}


def add_commands(subparsers: Commands) -> None:
    """Each sets ``run``, a function of the parsed arguments that returns the exit code."""
    for name, (add, text) in GROUPS.items():
        parser = subparsers.add_parser(name, help=text, description=text, allow_abbrev=False)
        add(parser.add_subparsers(title="commands", metavar="COMMAND", required=True))
    usage.add_usage(subparsers)
    apply.add(subparsers)
