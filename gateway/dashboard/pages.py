"""Every page there is, in the order of the navigation."""

from gateway.dashboard.account import ACCOUNT
from gateway.dashboard.adapters import ADAPTERS
from gateway.dashboard.audit import AUDIT
from gateway.dashboard.billing import BILLING
from gateway.dashboard.budgets import BUDGETS
from gateway.dashboard.explore import EXPLORE
from gateway.dashboard.health import HEALTH
from gateway.dashboard.keys import KEYS
from gateway.dashboard.organisations import ORGANISATIONS
from gateway.dashboard.overview import OVERVIEW
from gateway.dashboard.page import Page
from gateway.dashboard.people import PEOPLE
from gateway.dashboard.quotas import QUOTAS
from gateway.dashboard.requests import REQUESTS

PAGES: tuple[Page, ...] = (
    OVERVIEW,
    EXPLORE,
    REQUESTS,
    BILLING,
    QUOTAS,
    BUDGETS,
    ADAPTERS,
    PEOPLE,
    KEYS,
    AUDIT,
    HEALTH,
    ORGANISATIONS,
    ACCOUNT,
)
