"""The images of one chat, as its messages bring them: bytes in data URLs, nothing else.

Nothing is fetched from anywhere: a server that does can be made to look at what only it can reach.
"""

import binascii
from dataclasses import dataclass, field

from gateway.errors import InvalidRequest
from gateway.inference.fields import Fields, checked_text, missing, object_at

MOST_BYTES = 8 << 20  # of one image, decoded
DETAILS = ("auto", "low", "high", "original")  # all the same: the model has one size
_SPACES = str.maketrans("", "", " \t\r\n")


@dataclass(frozen=True, slots=True)
class Attachment:
    path: str  # where the client wrote it
    data: bytes = field(repr=False)  # a file, of whatever kind


class Album:
    """Images in the order in which they are shown."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.attachments: list[Attachment] = []

    def add(self, part: Fields) -> None:
        """An ``image_url`` part of a message. Raises InvalidRequest or one of its kinds."""
        path = part.at("image_url")
        given = part.take("image_url")
        if given is None:
            raise missing(path)
        if isinstance(given, str):  # some clients write it so
            url = checked_text(given, path)
        else:
            image = object_at(given, path)
            path = image.at("url")
            found = image.text("url")
            if found is None:
                raise missing(path)
            url = found
            detail = image.text("detail") or "auto"
            if detail not in DETAILS:
                raise InvalidRequest(
                    f"{image.at('detail')} must be one of {', '.join(DETAILS)}.",
                    param=image.at("detail"),
                )
        if len(self.attachments) == self._most:
            raise InvalidRequest(
                f"{path} is image {self._most + 1}; a request may show {self._most}.", param=path
            )
        self.attachments.append(Attachment(path, _bytes_of(url, path)))


def _bytes_of(url: str, path: str) -> bytes:
    head, comma, encoded = url.partition(",")
    scheme, _, kind = head.partition(":")
    if scheme.strip().lower() != "data":
        raise InvalidRequest(
            f"{path} must be a data URL, data:image/png;base64,…; images are not fetched from"
            " elsewhere.",
            param=path,
        )
    if not comma or not kind.lower().endswith(";base64"):
        raise InvalidRequest(
            f"{path} must say ;base64, before its data: data:image/png;base64,…", param=path
        )
    if len(encoded) > MOST_BYTES * 3 // 2:
        raise _too_large(path)
    try:
        data = binascii.a2b_base64(encoded.translate(_SPACES), strict_mode=True)
    except ValueError as error:  # characters beyond ASCII too
        raise InvalidRequest(f"{path} is not valid base64: {error}.", param=path) from error
    if not data:
        raise InvalidRequest(f"{path} holds no data.", param=path)
    if len(data) > MOST_BYTES:
        raise _too_large(path)
    return data


def _too_large(path: str) -> InvalidRequest:
    return InvalidRequest(f"{path} is larger than {MOST_BYTES} bytes.", param=path)
