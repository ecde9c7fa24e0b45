"""The page: plain files under a strict policy, the engine's state, and a try in a real browser."""

import json
import re
import shutil
from importlib.resources import files

import pytest

from gateway.page.routes import FILES
from tests.fakes.clock import until
from tests.gateway.serving import KEY, ask, serving


def get(path):
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()


@pytest.mark.parametrize("path", FILES)
async def test_every_file_is_served_under_the_strict_policy(tmp_path, path):
    async with serving(tmp_path) as server:
        got = await ask(server.port, get(path))
        assert (got.status, got.headers["content-type"]) == (200, FILES[path][1])
        policy = got.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert got.headers["x-content-type-options"] == "nosniff"
        assert got.headers["x-request-id"].startswith("req_")


def test_nothing_is_inline_and_nothing_comes_from_elsewhere():
    folder = files("gateway.page")
    page = folder.joinpath("index.html").read_text("utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)
    for name, _ in FILES.values():
        text = folder.joinpath(name).read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn", text), name


def test_the_key_is_never_stored():
    script = files("gateway.page").joinpath("page.js").read_text("utf-8")
    assert not re.search(r"localStorage|sessionStorage|cookie|indexedDB|innerHTML", script)


async def test_the_state_tells_the_engine_and_no_tenant(tmp_path):
    async with serving(tmp_path) as server:
        state = (await ask(server.port, get("/page/state"))).json
        (engine,) = state.pop("engines")
        assert state == {"base_model": "tiny", "open": False, "ready": True}
        assert engine["up"]
        assert engine["context"] == 512
        server.engine._server.close()
        server.engine.die()
        await until(lambda: not server.health.ready)
        down = (await ask(server.port, get("/page/state"))).json
        assert (down["ready"], down["engines"]) == (False, [{"up": False}])
        assert "prj_" not in json.dumps([state, engine, down])


@pytest.mark.e2e
async def test_a_person_tries_a_prompt_side_by_side_with_the_keyboard(tmp_path):
    playwright = pytest.importorskip("playwright.async_api")
    chromium = shutil.which("chromium") or pytest.skip("no chromium")
    async with serving(tmp_path) as server, playwright.async_playwright() as api:
        texts = {None: "From the base 中文", "d" * 64: "From support", "e" * 64: '{"from": "json"}'}

        def script(submit):
            digest = submit.adapter.digest if submit.adapter else None
            return server.tokenizer.encode(texts[digest], add_special=False)

        server.script(script)
        browser = await api.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page()
        faults = []
        page.on("pageerror", lambda fault: faults.append(fault))
        await page.goto(server.url)
        await page.wait_for_selector('[data-up="yes"]')
        await page.focus("#key")
        await page.keyboard.type(KEY)
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".chip")
        await page.focus("#prompt")
        await page.keyboard.type("Hello")
        await page.keyboard.press("Control+Enter")
        await page.wait_for_selector("#announce:has-text('complete')", state="attached")
        shown = await page.locator(".answer .text").all_inner_texts()
        assert shown == list(texts.values())
        assert "tokens/s" in await page.locator(".answer .counts").first.inner_text()
        assert KEY not in await page.locator("#code").inner_text()
        await page.focus("#tab-curl")
        await page.keyboard.press("ArrowRight")
        assert "from openai import OpenAI" in await page.locator("#code").inner_text()
        assert faults == []
        await browser.close()
