"""Teams become projects, their keys keys; whose organisation they are stays as it is.

Nothing is dropped in silence: what has no counterpart is noted, one sentence each.
"""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gateway.litellm.dump import Dump, DumpInvalid, Record, is_true, mapping, texts
from gateway.litellm.terms import is_own, limits, price

ALL_MODELS = frozenset({"*", "all-proxy-models", "all-team-models"})
ALL_ROUTES = frozenset({"llm_api_routes", "openai_routes"})
UNNAMEABLE = re.compile(r"[^A-Za-z0-9._-]+")
NO_TEAM = "default"
ROLES = {"admin": "admin", "user": "developer"}


@dataclass(slots=True)
class Import:
    """One import: ``tenants`` as tenants.yaml has them, and ``notes``."""

    dump: Dump
    organisation: str  # of teams that have none
    now: datetime
    notes: list[str] = field(default_factory=list)
    _served: set[str] | None = None  # public names; None: no config was given
    _people: dict[str, dict[str, Any]] = field(default_factory=dict)

    def tenants(self) -> dict[str, Any]:
        """Raises DumpInvalid."""
        prices = self._prices()
        organisations: dict[str, dict[str, Any]] = {}
        projects: dict[str, tuple[dict[str, Any], str]] = {}  # by team: project, place
        for team in self.dump.teams:
            self._team(team, organisations, projects)
        for key in self.dump.keys:
            self._key(key, organisations, projects)
        self._settings()
        return {"prices": prices, "organisations": organisations}

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _prices(self) -> list[dict[str, Any]]:
        deployments = self.dump.config.get("model_list") or []
        if not isinstance(deployments, list):
            raise DumpInvalid("model_list is no list")
        if not deployments:
            return []
        self._served = set()
        found: dict[str, dict[str, Any]] = {}
        for deployment in deployments:
            name = str(deployment.get("model_name", ""))
            if not is_own(deployment):
                self.note(f"model {name!r} is another provider's: it stays behind your proxy")
                continue
            self._served.add(name)
            if (tariff := price(deployment, name)) is not None:
                if found.setdefault(name, tariff) != tariff:
                    self.note(f"model {name!r} has several prices: the first is taken")
            else:
                self.note(f"model {name!r} has no price in the config: it costs nothing")
            for limit in ("rpm", "tpm"):
                if mapping(deployment, "litellm_params").get(limit):
                    self.note(f"model {name!r}: {limit} of a deployment is its engine's business")
        return list(found.values())

    def _team(
        self,
        team: Record,
        organisations: dict[str, dict[str, Any]],
        projects: dict[str, tuple[dict[str, Any], str]],
    ) -> None:
        identity = str(team.get("team_id", ""))
        place = f"team {team.get('team_alias') or identity}"
        if is_true(team, "blocked"):
            self.note(f"{place} is blocked: left out, with its keys")
            projects[identity] = ({}, "")
            return
        owner = self._named(str(team.get("organization_id") or self.organisation), place)
        of_owner = organisations.setdefault(owner, {}).setdefault("projects", {})
        name = self._named(str(team.get("team_alias") or identity), place)
        if name in of_owner:
            raise DumpInvalid(f"{place}: another team of {owner} is called {name!r} as well")
        project = of_owner[name] = limits(team, place, self.note)
        self._allowed(team, place, project, of_team=True)
        for member in team.get("members_with_roles") or []:
            self._member(member, organisations[owner], project, place)
        projects[identity] = (project, place)

    def _key(
        self,
        key: Record,
        organisations: dict[str, dict[str, Any]],
        projects: dict[str, tuple[dict[str, Any], str]],
    ) -> None:
        label = str(key.get("key_alias") or key.get("key_name") or str(key.get("token", ""))[:12])
        place, team = f"key {label}", str(key.get("team_id") or "")
        if is_true(key, "blocked"):
            self.note(f"{place} is blocked: left out")
            return
        expires = key.get("expires")
        if expires and _moment(str(expires), place) <= self.now:
            self.note(f"{place} has expired: left out")
            return
        if team and team not in projects:
            raise DumpInvalid(f"{place} is of team {team}, which the teams have not")
        if team and not projects[team][1]:  # of a blocked one
            return
        project = projects[team][0] if team else self._of_nobody(organisations)
        keys = project.setdefault("keys", {})
        name = self._named(label, place)
        if name in keys:
            raise DumpInvalid(f"{place}: another key of its team is called {name!r} as well")
        keys[name] = made = limits(key, place, self.note)
        if expires:
            made["expires"] = _moment(str(expires), place).isoformat()
        self._allowed(key, place, made, of_team=False)
        self._routes(key, place, made)
        if mapping(key, "aliases"):
            self.note(f"{place}: its aliases are names of models: `loratorio adapter` gives those")

    def _of_nobody(self, organisations: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Keys without a team share a project."""
        owner = self._named(self.organisation, "--organisation")
        found: dict[str, Any] = (
            organisations.setdefault(owner, {}).setdefault("projects", {}).setdefault(NO_TEAM, {})
        )
        return found

    def _allowed(self, record: Record, place: str, made: dict[str, Any], *, of_team: bool) -> None:
        models = texts(record, "models")
        if not models or ALL_MODELS & set(models):
            return
        if of_team:
            self.note(
                f"{place}: a project has its own adapters and the base, so its list of models"
                f" ({', '.join(models)}) is left out; keys have lists"
            )
            return
        elsewhere = [m for m in models if self._served is not None and m not in self._served]
        if elsewhere:
            self.note(f"{place}: {', '.join(elsewhere)}: not served here, left out of its models")
        made["allow_models"] = [m for m in models if m not in elsewhere]

    def _routes(self, key: Record, place: str, made: dict[str, Any]) -> None:
        routes = texts(key, "allowed_routes")
        if not routes or ALL_ROUTES & set(routes):
            return
        paths = [r if r.startswith("/v1/") else f"/v1{r}" for r in routes if r.startswith("/")]
        if other := [route for route in routes if not route.startswith("/")]:
            self.note(f"{place}: {', '.join(other)} is no route of requests: left out")
        made["endpoints"] = sorted(set(paths))

    def _member(
        self, member: Record, owner: dict[str, Any], project: dict[str, Any], place: str
    ) -> None:
        if not self._people:
            self._people = {str(u.get("user_id")): dict(u) for u in self.dump.users}
        identity = str(member.get("user_id") or "")
        user = self._people.get(identity, {})
        address = member.get("user_email") or user.get("user_email")
        if not address:
            self.note(f"{place}: member {identity} has no address and cannot sign in: left out")
            return
        name = user.get("user_alias") or address
        owner.setdefault("people", {}).setdefault(address, {"name": name, "role": "viewer"})
        role = ROLES.get(str(member.get("role")), "developer")
        project.setdefault("people", {})[address] = role

    def _named(self, text: str, place: str) -> str:
        name = UNNAMEABLE.sub("-", text).strip("-._")[:64]
        if not name:
            raise DumpInvalid(f"{place}: no name can be made of {text!r}")
        if name != text:
            self.note(f"{place}: is called {name!r} here")
        return name

    def _settings(self) -> None:
        settings = mapping(self.dump.config, "litellm_settings")
        if settings.get("max_budget"):
            self.note("litellm_settings: max_budget of the proxy: give it to your organisations")
        if mapping(self.dump.config, "general_settings").get("master_key"):
            self.note("general_settings: instead of a master_key, `loratorio key create --admin`")
        if self.dump.keys:
            self.note(
                "keys are known to LiteLLM by their hashes alone: new ones are shown by apply"
            )
        if any(record.get("spend") for record in (*self.dump.teams, *self.dump.keys)):
            self.note("what was spent in LiteLLM stays there: periods begin anew")


def _moment(text: str, place: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise DumpInvalid(f"{place}: expires={text!r} is no time") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
