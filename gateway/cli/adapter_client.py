"""The adapter API as a client calls it: with retries for what passes, and words for what does not.

A request is tried again when no answer came, when the server says that it is busy, or when a part
arrived damaged. Belongs to one thread.
"""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import httpx2

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
ATTEMPTS = 8
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
TIMEOUT = httpx2.Timeout(60.0, connect=10.0)
PART_TYPE = "application/octet-stream"
Json = dict[str, Any]


class PushFailed(Exception):
    """The server did not take it. ``problems`` lists its reasons."""

    def __init__(self, text: str, problems: tuple[str, ...] = (), *, status: int = 0) -> None:
        super().__init__(text)
        self.problems, self.status = problems, status


class AdapterClient:
    def __init__(
        self,
        url: str,
        key: str,
        *,
        tenant: str | None = None,
        say: Callable[[str], None] = lambda text: None,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``url`` is the server's, with or without /v1. ``say`` hears of every retry."""
        self._http = httpx2.Client(
            base_url=url.rstrip("/").removesuffix("/v1") + "/v1/adapters",
            headers={"authorization": f"Bearer {key}"},
            params={"tenant": tenant} if tenant else {},
            timeout=TIMEOUT,
            transport=transport,
        )
        self._say, self._sleep = say, sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def begin(self, form: Json) -> Json:
        return self._call("POST", "/uploads", json=form)

    def status(self, upload: str) -> Json | None:
        """None: there is no such upload any more."""
        try:
            return self._call("GET", f"/uploads/{upload}")
        except PushFailed as error:
            if error.status == 404:
                return None
            raise

    def send(self, upload: str, file: str, number: int, data: bytes, sha256: str) -> None:
        self._call(
            "PUT",
            f"/uploads/{upload}/{file}/{number}",
            content=data,
            headers={"x-content-sha256": sha256, "content-type": PART_TYPE},
        )

    def complete(self, upload: str, sums: Mapping[str, str]) -> Json:
        return self._call(
            "POST", f"/uploads/{upload}/complete", json={"sha256": dict(sums), "wait": False}
        )

    def version(self, name: str, version_id: str) -> Json:
        """With its report."""
        found = self._call("GET", f"/{name}")["versions"]
        (model,) = [each["model"] for each in found if each["id"] == version_id]
        return self._call("GET", f"/{model}")

    def _call(self, method: str, path: str, **more: Any) -> Json:
        """Raises PushFailed."""
        pause, attempt = FIRST_PAUSE_S, 1
        while True:
            wait = pause
            try:
                answer = self._http.request(method, path, **more)
            except httpx2.TransportError as error:
                failure = PushFailed(
                    f"no answer from {self._http.base_url} ({error or type(error).__name__}); "
                    "--url says where the server is"
                )
            else:
                if answer.is_success:
                    found: Json = answer.json() if answer.content else {}
                    return found
                failure, damaged = _failure(answer)
                if answer.status_code not in PASSING and not damaged:
                    raise failure
                wait = max(pause, _retry_after(answer))
            if attempt == ATTEMPTS:
                raise failure
            attempt, pause = attempt + 1, min(pause * 2, LONGEST_PAUSE_S)
            self._say(f"{failure}; trying again in {wait:.1f} s")
            self._sleep(wait)


def _failure(answer: httpx2.Response) -> tuple[PushFailed, bool]:
    """What to say, and whether the part was damaged on its way."""
    try:
        error = answer.json()["error"]
        text, problems = str(error["message"]), tuple(map(str, error.get("problems") or ()))
    except (ValueError, KeyError, TypeError):
        return PushFailed(f"the server answered {answer.status_code}"), False
    damaged = answer.request.method == "PUT" and error.get("code") == "checksum_mismatch"
    return PushFailed(text, problems, status=answer.status_code), damaged


def _retry_after(answer: httpx2.Response) -> float:
    try:
        return min(float(answer.headers.get("retry-after", 0)), 4 * LONGEST_PAUSE_S)
    except ValueError:
        return 0.0
