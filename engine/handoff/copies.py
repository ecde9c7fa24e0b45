"""Waiting for a device's copies, which tell nobody when they are over."""

import asyncio

from engine.handoff.news import Ended

POLL_S = 0.0002


async def over(ended: Ended) -> None:
    while not ended():  # noqa: ASYNC110  there is no event to wait for
        await asyncio.sleep(POLL_S)
