"""Service tiers as priorities: which requests go before which, whoever sends them.

``flex`` waits until nobody else does. ``priority`` (and its older names) goes first, where the
operator lets tenants ask for it; elsewhere it is served as ``default``, and the answer says so,
as OpenAI's does.
"""

from enum import StrEnum


class Tier(StrEnum):
    FLEX = "flex"
    DEFAULT = "default"
    PRIORITY = "priority"

    @property
    def priority(self) -> int:
        return PRIORITIES[self]


PRIORITIES = {Tier.FLEX: -1, Tier.DEFAULT: 0, Tier.PRIORITY: 1}
BATCH_PRIORITY = -2  # of work that nobody waits for
# What a client may write.
TIERS = {
    "auto": Tier.DEFAULT, "default": Tier.DEFAULT, "standard": Tier.DEFAULT, "flex": Tier.FLEX,
    "priority": Tier.PRIORITY, "fast": Tier.PRIORITY, "scale": Tier.PRIORITY,
}  # fmt: skip
