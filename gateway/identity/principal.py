"""Who is asking. Found once per request from an in-process snapshot; never from the database."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """One API key's holder. The project is the tenant: the unit of isolation."""

    organisation: str  # org_…
    project: str  # prj_…
    project_name: str
    key: str  # key_…
    tenant: str  # opaque hash of the project, as engines see it
    requests_per_minute: int | None = None  # None: unlimited
    tokens_per_minute: int | None = None
    endpoints: tuple[str, ...] | None = None  # paths it may be used for; None: all
    models: tuple[str, ...] | None = None  # public names; None: all of its project
    networks: tuple[str, ...] | None = None  # 10.0.0.0/8; None: from anywhere
    weight: int = 1  # of a busy engine, against other projects' weights
    strict: bool = False  # fields that nobody knows are refused
    text_days: int = 0  # that texts of its requests are kept; 0: none is
    admin: bool = False  # admin keys call no inference route
    role: str | None = None  # of an admin key, in the organisation
    project_roles: tuple[tuple[str, str], ...] = ()  # (project, role), beside that
