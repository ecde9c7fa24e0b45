"""Adapters uploaded from the page: dropped or chosen, in parts, refused with reasons."""

import base64

import pytest
import pytest_asyncio

from gateway.audit.repository import AuditRepository
from gateway.catalog.repository import AdapterRepository
from gateway.dashboard.cookies import token_of
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit
from tests.gateway.adapter_world import adapter

pytestmark = ON_THE_SESSIONS_LOOP
FILES = ("adapter_config.json", "adapter_model.safetensors")
OURS = {"sec-fetch-site": "same-origin"}
DROP = """async ([files]) => {
  const transfer = new DataTransfer();
  for (const [name, text] of files) {
    const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
    transfer.items.add(new File([bytes], name));
  }
  const box = document.querySelector(".drop");
  const told = { dataTransfer: transfer, bubbles: true, cancelable: true };
  for (const kind of ["dragenter", "dragover", "drop"])
    box.dispatchEvent(new DragEvent(kind, told));
}"""


@pytest.fixture
def project(served):
    return served.world.projects["acme/batch"]


@pytest_asyncio.fixture(loop_scope="session")
async def signed(http, served):
    """An owner's client, and what each of its changes must carry."""
    cookie = await served.cookie("owner")
    http.cookies.set("loratorio-sign-in", cookie)
    return http, OURS | {"x-form-token": token_of(cookie)}


async def versions(served, project):
    async with served.world.database.reading() as session:
        rows = await AdapterRepository(session, project).all()
    return {f"{row.name}@{row.version}": row for row in rows}


async def test_dropped_files_become_a_version_and_its_report_is_shown(
    browser, served, project, tmp_path
):
    folder = adapter(tmp_path / "a", seed=1)
    files = [(n, base64.b64encode((folder / n).read_bytes()).decode()) for n in FILES]
    async with browser.page("owner", f"/adapters?project={project}") as page:
        await page.fill("#u-name", "dropped")
        await page.fill("#u-alias", "live")
        await page.evaluate(DROP, [files])
        await page.wait_for_selector("[data-told]:has-text('Ready to upload')")
        await page.click("[data-upload] button.main")
        await page.wait_for_url("**version=*")
        assert "dropped@1" in await page.inner_text("#report")
        assert '"rank": 4' in await page.inner_text("pre.told")
    assert (await versions(served, project))["dropped@1"].rank == 4
    resolve = served.snapshot.current.catalogue.resolve
    assert resolve(project, "live", "").adapter is not None
    async with served.world.database.reading() as session:
        log = AuditRepository(session, served.world.organisations["acme"])
        last = next(iter(await log.newest_first(1)))
    assert (last.type, last.object_id, last.project_id) == ("adapter.created", "dropped@1", project)


async def test_a_keyboard_alone_uploads_and_reasons_of_a_refusal_are_told(
    browser, served, project, tmp_path
):
    folder = adapter(tmp_path / "a", seed=2, r=7)
    async with browser.page("developer", f"/adapters?project={project}", refused=422) as page:
        await page.focus("#u-name")
        await page.keyboard.type("wrong")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.id") == "u-files"
        await page.set_input_files("#u-files", [folder / FILES[0]])
        assert "Still missing: adapter_model.safetensors" in await page.inner_text("[data-told]")
        await page.set_input_files("#u-files", [folder / name for name in FILES])
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("[data-problems] li")
        assert await page.inner_text("[data-told]") != ""
        await page.wait_for_selector("progress", state="hidden")
        assert await audit(page) == []
    assert "wrong@1" not in await versions(served, project)


async def test_an_upload_that_was_cut_goes_on_where_it_was(browser, served, project, tmp_path):
    folder = adapter(tmp_path / "a", seed=3)
    async with browser.page("owner", f"/adapters?project={project}", refused=500) as page:
        puts: list[str] = []
        fails = True

        async def watch(route):
            puts.append(route.request.url.split("?")[0].rsplit("/", 2)[1])
            if fails and puts[-1] == FILES[1]:
                await route.fulfill(status=500, json={"error": {"message": "away"}})
            else:
                await route.continue_()

        await page.route("**/uploads/*/*/*", watch)
        await page.fill("#u-name", "resumed")
        await page.set_input_files("#u-files", [folder / name for name in FILES])
        await page.click("[data-upload] button.main")
        await page.wait_for_selector("[data-told]:has-text('goes on where it was')", timeout=15000)
        fails = False
        puts.clear()
        await page.click("[data-upload] button.main")
        await page.wait_for_url("**version=*")
        assert puts == [FILES[1]], "the other file was there already"
    assert "resumed@1" in await versions(served, project)


async def test_only_our_page_changes_anything(signed, served, project):
    http, headers = signed
    for wrong in ({"sec-fetch-site": "cross-site"}, {"x-form-token": "another"}):
        answer = await http.post(
            f"/adapters/uploads?project={project}", json={"name": "x"}, headers=headers | wrong
        )
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "permission_denied"


async def test_who_may_not_and_what_is_anothers(signed, http, served, project):
    _, headers = signed
    theirs = served.world.projects["globex/app"]
    made = await http.post(f"/adapters/uploads?project={project}", json={"name": "x"},
                           headers=headers)  # fmt: skip
    upload = made.json()["id"]
    for asked in (theirs, "prj_none", ""):
        for path in ("", f"/{upload}/complete"):
            answer = await http.post(f"/adapters/uploads{path}?project={asked}", json={},
                                     headers=headers)  # fmt: skip
            assert answer.status_code == 404
    cookie = await served.cookie("viewer")
    http.cookies.set("loratorio-sign-in", cookie)
    own = OURS | {"x-form-token": token_of(cookie)}
    answer = await http.get(f"/adapters/uploads/{upload}?project={project}", headers=own)
    assert answer.status_code == 403
    http.cookies.clear()
    answer = await http.get(f"/adapters/uploads/{upload}?project={project}",
                            headers=OURS | {"x-form-token": token_of("")})  # fmt: skip
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        (b"{}", 400, "name"),
        (b'{"name": 7}', 400, "name"),
        (b'{"name": "x", "more": 1}', 400, "more"),
        (b"not json", 400, "body"),
        (b'{"name": "' + b"x" * 20000 + b'"}', 413, "bytes"),
        (b'{"name": "../x"}', 400, "name"),
    ],
)
async def test_a_bad_beginning_is_refused_by_name(signed, project, body, status, named):
    http, headers = signed
    answer = await http.post(f"/adapters/uploads?project={project}", content=body, headers=headers)
    assert answer.status_code == status
    assert named in answer.json()["error"]["message"]


async def test_an_upload_that_is_given_up_is_gone(signed, project):
    http, headers = signed
    query = f"?project={project}"
    made = await http.post(f"/adapters/uploads{query}", json={"name": "x"}, headers=headers)
    one = f"/adapters/uploads/{made.json()['id']}"
    put = await http.put(f"{one}/{FILES[0]}/1{query}", content=b"{}", headers=headers)
    assert put.json()["bytes"] == 2
    assert (await http.get(one + query, headers=headers)).json()["bytes_received"] == 2
    assert (await http.delete(one + query, headers=headers)).status_code == 200
    assert (await http.get(one + query, headers=headers)).status_code == 404
