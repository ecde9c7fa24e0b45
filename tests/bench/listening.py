"""An application on a port of this process, by the gateway's own listener."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.http import Asgi
from gateway.listener import Listener
from tests.fakes.clock import until


@asynccontextmanager
async def listening(application: Asgi) -> AsyncIterator[int]:
    """Its port, until the block ends."""
    listener = Listener(application, "127.0.0.1", 0)
    task = asyncio.create_task(listener.run_until_stopped())
    await until(lambda: listener.started)
    yield listener.port
    task.cancel()
    await asyncio.wait([task])
    for server in listener.servers:
        server.close()
