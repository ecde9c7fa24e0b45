"""Chromium, signed in as somebody, and what every page must be: without errors and accessible."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import Browser as Chromium
from playwright.async_api import Page, async_playwright

if TYPE_CHECKING:
    from tests.dashboard.conftest import Served

ON_THE_SESSIONS_LOOP = pytest.mark.asyncio(loop_scope="session")
AXE = Path(__file__).parent / "axe-4.14.1.min.js"
NARROW, WIDE = {"width": 390, "height": 844}, {"width": 1360, "height": 900}
# A root without a sandbox of its own, on a machine that reaches nothing.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
AUDIT = """async () => {
  const runOnly = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"];
  const { violations } = await axe.run(document, { runOnly });
  const told = (node) => [node.html.slice(0, 160), ...node.any.map((each) => each.message)];
  return violations.map((each) =>
    [`${each.id}: ${each.help}`, ...each.nodes.slice(0, 4).flatMap(told)].join("\\n  "));
}"""
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def chromium() -> str | None:
    named = os.environ.get("CHROMIUM")
    return named or shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    def __init__(self, chrome: Chromium, served: "Served", shots: Path | None) -> None:
        self._chrome = chrome
        self._served = served
        self._shots = shots

    @asynccontextmanager
    async def page(
        self,
        who: str | None,
        path: str = "",
        *,
        narrow: bool = False,
        dark: bool = False,
        status: int = 200,
        zone: str = "Europe/Berlin",
        refused: int = 0,
    ) -> AsyncIterator[Page]:
        """Open at ``path``. Fails at the end if anything was refused or thrown meanwhile, but for
        answers with the status ``refused``."""
        context = await self._chrome.new_context(
            viewport=NARROW if narrow else WIDE,  # type: ignore[arg-type]
            color_scheme="dark" if dark else "light",
            timezone_id=zone,
            has_touch=narrow,
        )
        if who is not None:
            cookie = {"name": "loratorio-sign-in", "value": await self._served.cookie(who)}
            await context.add_cookies([{**cookie, "url": self._served.url}])  # type: ignore[list-item]
        page = await context.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "console",
            lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.set_default_timeout(8000)
        answer = await page.goto(f"{self._served.url}/dashboard{path}")
        assert answer is not None
        assert answer.status == status, await page.inner_text("body")
        yield page
        await context.close()
        expected = [f"status of {each}" for each in (status, refused) if each not in (0, 200)]
        assert [each for each in wrong if not any(known in each for known in expected)] == []

    async def shoot(self, page: Page, name: str) -> None:
        """For people to look at, where SCREENSHOTS names a folder."""
        if self._shots is not None:
            self._shots.mkdir(parents=True, exist_ok=True)
            await page.screenshot(path=self._shots / f"{name}.png", full_page=True)


async def audit(page: Page) -> list[str]:
    """What axe-core finds; and that nothing stands out to the side."""
    await page.evaluate(AXE.read_text())
    found: list[str] = await page.evaluate(AUDIT)
    if (over := await page.evaluate(OVERFLOW)) > 0:
        found.append(f"the page is {over} px wider than the window")
    return found


@asynccontextmanager
async def opened(served: "Served", shots: Path | None) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        chrome = await playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield Browser(chrome, served, shots)
        await chrome.close()
