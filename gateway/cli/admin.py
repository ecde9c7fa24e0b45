"""The operator's commands: ``loratorio tenant|key|adapter|user|credit|price|usage|apply|backup…``.

They write the database directly; running gateways see every change within a second. Answers go to
standard output as a table, or as JSON with ``--json``. What is wrong is said in one line on
standard error, with exit code 1 (2 for wrong usage).

Most of a short command's time would be the import of all the others' modules, so a module is
imported when its command is asked for.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.cli.desk import Commands


@dataclass(frozen=True, slots=True)
class Family:
    """Commands that one function of a module adds."""

    module: str
    function: str
    helps: dict[str, str]  # by command
    group: bool = False  # it has commands of its own, and they are what the function adds

    def add(self, subparsers: "Commands") -> None:
        add = getattr(import_module(f"gateway.cli.{self.module}"), self.function)
        if not self.group:
            add(subparsers)
            return
        for name, text in self.helps.items():
            parser = subparsers.add_parser(name, help=text, description=text, allow_abbrev=False)
            add(parser.add_subparsers(title="commands", metavar="COMMAND", required=True))

    def list(self, subparsers: "Commands") -> None:
        for name, text in self.helps.items():
            subparsers.add_parser(name, help=text, add_help=False)


def _group(name: str, module: str, text: str, function: str = "add") -> Family:
    return Family(module, function, {name: text}, group=True)


def _families() -> Iterable[Family]:
    return (
        _group("tenant", "tenants", "create, list and revoke tenants"),
        _group("key", "keys", "create, list and revoke API keys"),
        _group("adapter", "adapters", "create, list and revoke a tenant's adapters"),
        _group("user", "users", "who signs in to the dashboard"),
        _group("credit", "credits", "grant and list credit that was paid in advance"),
        _group("price", "prices", "set, list and correct prices"),
        _group("period", "usage", "close and list billing months", "add_periods"),
        Family(
            "usage",
            "add_usage",
            {
                "usage": "what a tenant used, by model",
                "settle": "bring a stopped gateway's log into the database",
                "reconcile": "prove that ledger, roll-ups and engines agree",
            },
        ),
        _group("sink", "billing", "deliveries to billing systems", "add_sinks"),
        Family(
            "billing", "add", {"export": "write a month's charges as FOCUS 1.2, with a manifest"}
        ),
        Family(
            "doctor",
            "add",
            {"doctor": "look at GPU, stores, clocks, configuration and books, and say what to do"},
        ),
        Family("top", "add", {"top": "watch engines, tenants and adapters live"}),
        Family("drain", "add", {"drain": "have an engine finish what it has, and end"}),
        Family("apply", "add", {"apply": "bring about what a file of tenants says"}),
        _group("import", "imports", "tenants of another server as a file for apply"),
        Family(
            "backup",
            "add",
            {
                "backup": "write all that must not be lost into a folder",
                "restore": "make a server's state from a backup",
            },
        ),
        Family("prepare", "add_prepare", {"prepare": "migrate the database, note the base model"}),
    )


def add_commands(subparsers: "Commands", chosen: str | None = None) -> None:
    """Each sets ``run``, a function of the parsed arguments that returns the exit code.

    Where one is ``chosen``, of the others only name and help are added.
    """
    for family in _families():
        if chosen is None or chosen in family.helps:
            family.add(subparsers)
        else:
            family.list(subparsers)
