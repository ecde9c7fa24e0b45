"""How the served model sees: images become pixels, and the places they take in a prompt.

A template writes one placeholder for each image, and each becomes as many as the tower makes
vectors. Belongs to one event loop; files of strangers are decoded in threads of their own, so that
they delay nobody's text.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

from engine.errors import CheckpointInvalid
from engine.protocol import Image
from engine.seeing import Seeing
from engine.transport import MAX_FRAME
from gateway.config import ConfigError
from gateway.errors import InvalidRequest
from gateway.inference.album import Album, Attachment
from gateway.inference.picture import PictureInvalid, prepared
from gateway.inference.prompt import require_room

MOST_IMAGES = 32
FRAME_SHARE = MAX_FRAME * 3 // 4  # of a message to an engine, that images may take


@dataclass(frozen=True, slots=True)
class Picture:
    digest: bytes
    pixels: bytes = field(repr=False)


class Sight:
    def __init__(self, seeing: Seeing, threads: Executor) -> None:
        self.seeing = seeing
        self._threads = threads
        self._most = min(MOST_IMAGES, FRAME_SHARE // seeing.preparation.nbytes)

    @classmethod
    def of(cls, model_dir: Path, threads: Executor) -> "Sight | None":
        """None where the model reads text alone. Raises ConfigError."""
        try:
            seeing = Seeing.of(model_dir)
        except CheckpointInvalid as error:
            raise ConfigError(f"{model_dir}: {error}") from error
        return None if seeing is None else cls(seeing, threads)

    def album(self) -> Album:
        return Album(self._most)

    async def images(
        self, tokens: Sequence[int], album: Album, *, context: int
    ) -> tuple[list[int], list[Image]]:
        """A rendered prompt with every image in its place.

        Raises InvalidRequest, ContextTooLong before anything is decoded.
        """
        shown = album.attachments
        whole, starts = self.spread(tokens, shown)
        require_room(len(whole), context, param="messages")
        pictures = [await self._picture(attachment) for attachment in shown]
        images = [
            Image(start, self.seeing.tokens, picture.digest, picture.pixels)
            for start, picture in zip(starts, pictures, strict=True)
        ]
        return whole, images

    def spread(
        self, tokens: Sequence[int], shown: Sequence[Attachment]
    ) -> tuple[list[int], list[int]]:
        """Each placeholder as often as its image needs it, and where each image begins."""
        token, each = self.seeing.token, self.seeing.tokens
        if (count := tokens.count(token)) != len(shown):
            raise InvalidRequest(
                f"The model's chat template shows {count} of the {len(shown)} images.",
                param="messages",
            )
        whole: list[int] = []
        starts: list[int] = []
        for each_token in tokens:
            if each_token == token:
                starts.append(len(whole))
                whole += [token] * each
            else:
                whole.append(each_token)
        return whole, starts

    async def _picture(self, attachment: Attachment) -> Picture:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._taken, attachment.data)
        except PictureInvalid as error:
            path = attachment.path
            raise InvalidRequest(f"{path} {error}.", param=path) from error

    def _taken(self, data: bytes) -> Picture:
        pixels = prepared(data, self.seeing.preparation).tobytes()
        return Picture(hashlib.sha256(pixels).digest(), pixels)
