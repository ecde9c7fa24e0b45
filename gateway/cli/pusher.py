"""One adapter's way to a published version; what has arrived is not sent again."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from gateway.cli.adapter_client import AdapterClient, Json, PushFailed
from gateway.cli.bundle import Bundle
from gateway.cli.progress import ByteBar

POLL_S = 0.5
COMPLETIONS = 20  # an engine that is away comes back, or it does not
PAUSE_S = 3.0
CONFLICT = 409


class Pusher:
    def __init__(
        self,
        client: AdapterClient,
        bundle: Bundle,
        bar: ByteBar,
        *,
        memory: Path,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``memory``: the file that keeps the upload's id between runs."""
        self._client, self._bundle, self._bar, self._memory = client, bundle, bar, memory
        self._sleep = sleep

    def push(self, form: Json) -> Json:
        """The published version. Raises PushFailed."""
        upload = self._open(form)
        self._send_missing(upload)
        done = self._publish(upload["id"])
        self._memory.unlink(missing_ok=True)
        return self._client.version(form["name"], done["version_id"])

    def _open(self, form: Json) -> Json:
        """The upload that an earlier run began, or a new one."""
        if self._memory.is_file():
            known = self._client.status(self._memory.read_text("ascii").strip())
            if known is not None and known["state"] != "failed":
                self._bar.say(f"going on with upload {known['id']}")
                return known
        begun = self._client.begin(form)
        self._memory.parent.mkdir(parents=True, exist_ok=True)
        self._memory.write_text(begun["id"], "ascii")
        return begun

    def _send_missing(self, upload: Json) -> None:
        if upload["state"] != "uploading":
            return
        there = {
            (file, part["part"]): part["bytes"]
            for file, parts in upload["files"].items()
            for part in parts
        }
        left = [p for p in self._bundle.parts() if there.get((p.file, p.number)) != p.nbytes]
        done = self._bundle.nbytes - sum(part.nbytes for part in left)
        self._bar.show(done)
        for part in left:
            data = self._bundle.read(part)
            sha256 = hashlib.sha256(data).hexdigest()
            self._client.send(upload["id"], part.file, part.number, data, sha256)
            done += part.nbytes
            self._bar.show(done)

    def _publish(self, upload: str) -> Json:
        for _ in range(COMPLETIONS):
            state = self._client.status(upload)
            if state is not None and state["state"] == "uploading":
                self._complete(upload)
                state = self._settled(upload)
            if state is None:
                raise PushFailed("the upload was given up meanwhile; push it again")
            if state["state"] == "ready":
                return state
            error = state["error"] or {}
            if state["state"] == "failed":
                self._memory.unlink(missing_ok=True)
                problems = tuple(map(str, error.get("problems") or ()))
                raise PushFailed(str(error.get("message", "refused")), problems, status=422)
            self._bar.say(f"{error.get('message', 'not published yet')} trying again")
            self._sleep(PAUSE_S)
        raise PushFailed(f"upload {upload} waits for an engine; run the same command later")

    def _complete(self, upload: str) -> None:
        try:
            self._client.complete(upload, self._bundle.sums)
        except PushFailed as error:
            if error.status != CONFLICT:  # else an earlier attempt arrived, and its answer did not
                raise

    def _settled(self, upload: str) -> Json | None:
        """Wait while it is validated, and say what is being done."""
        stage = ""
        while True:
            state = self._client.status(upload)
            if state is None or state["state"] != "validating":
                return state
            if state["stage"] and state["stage"] != stage:
                stage = state["stage"]
                self._bar.show(self._bundle.nbytes, stage)
            self._sleep(POLL_S)
