"""Who looks at the dashboard. Found for each page from the cookie, so a role that was taken away
is gone with the next page."""

from dataclasses import dataclass
from enum import StrEnum

from gateway.identity.models import Role
from gateway.identity.principal import Principal


class Audience(StrEnum):
    """Whom a page is for."""

    OPERATOR = "operator"  # runs the gateway, and sees every organisation
    TENANT = "tenant"  # owner, admin, developer, viewer
    BILLING = "billing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    login: str
    email: str
    name: str
    organisation: str = ""  # "" for an operator, who is of none
    organisation_name: str = ""
    role: Role | None = None  # None: an operator
    project_roles: tuple[tuple[str, str], ...] = ()

    @property
    def is_operator(self) -> bool:
        return self.role is None

    @property
    def audience(self) -> Audience:
        if self.role is None:
            return Audience.OPERATOR
        return Audience.BILLING if self.role is Role.BILLING else Audience.TENANT

    def acting_in(self, organisation: str) -> Principal:
        """As rights are asked of: an operator is an owner everywhere."""
        return Principal(
            organisation=organisation,
            project="",
            project_name="",
            key=self.login,
            tenant="",
            admin=True,
            role=self.role or Role.OWNER,
            project_roles=self.project_roles,
        )
