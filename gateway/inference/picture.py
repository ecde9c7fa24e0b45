"""A file from a stranger to an image of the tower's size, as the checkpoint's processor makes it.

What a file claims is looked at before any of it is decoded: few bytes may stand for very many
pixels. Transparency shows white, as transformers has it; a camera's note of how it was held is
followed. Pure functions, for threads.
"""

import struct
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from engine.seeing import Preparation

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
ANIMATED = ("PNG", "WEBP", "GIF")  # a JPEG with several images is a photograph and its preview
MOST_PIXELS = 1 << 25  # of the file, and of what it is resized to
MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})
WHITE = (255, 255, 255, 255)
# What Pillow's decoders raise at bytes that are not what they claim.
BROKEN = (
    OSError, SyntaxError, ValueError, EOFError, TypeError, AttributeError, LookupError,
    ArithmeticError, NotImplementedError, RuntimeError, struct.error, Image.DecompressionBombError,
)  # fmt: skip
Pixels = npt.NDArray[np.uint8]


class PictureInvalid(ValueError):
    """The message says what is wrong with it, without a subject."""


def prepared(data: bytes, how: Preparation) -> Pixels:
    """[side, side, 3]. Raises PictureInvalid."""
    pixels = _opened(data, how)
    if how.ground is not None:
        pixels = _squared(pixels, how.ground)
    height, width = pixels.shape[:2]
    image = Image.fromarray(pixels).resize(
        _resized(width, height, how), resample=Image.Resampling(how.resample)
    )
    return _middle(np.asarray(image), how.side)


def _opened(data: bytes, how: Preparation) -> Pixels:
    try:
        with _header(data) as image:
            _require_size(image.size, how)
            _require_one(image)
            return np.asarray(_rgb(image))
    except PictureInvalid:
        raise
    except BROKEN as error:
        said = str(error).split("\n")[0][:100]
        raise PictureInvalid(f"is damaged or cut short: {said}") from error


def _header(data: bytes) -> Image.Image:
    try:
        return Image.open(BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise PictureInvalid(f"has more pixels than the {MOST_PIXELS} that are read") from error
    except BROKEN as error:
        raise PictureInvalid(f"is not an image of a kind that is read: {', '.join(FORMATS)}") from (
            error
        )


def _require_size(size: tuple[int, int], how: Preparation) -> None:
    width, height = size
    if width < 1 or height < 1 or width * height > MOST_PIXELS:
        raise PictureInvalid(f"has {width} x {height} pixels; at most {MOST_PIXELS} are read")
    wide, high = (max(size),) * 2 if how.ground is not None else size
    grown = _resized(wide, high, how)
    if wide * high > MOST_PIXELS or grown[0] * grown[1] > MOST_PIXELS:
        most = MOST_PIXELS // (how.shortest or how.side) ** 2
        raise PictureInvalid(
            f"has {width} x {height} pixels; one side may be {most} times the other at most"
        )


def _require_one(image: Image.Image) -> None:
    if image.format in ANIMATED and getattr(image, "is_animated", False):
        raise PictureInvalid("is animated; send one image of it")


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):  # grey of 16 bits, which Pillow would show as white
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode not in MODES:
        raise PictureInvalid(f"is in colour mode {image.mode}, which is not read")
    transparent = "A" in image.getbands() or image.info.get("transparency") is not None
    image = ImageOps.exif_transpose(image)
    if not transparent:
        return image.convert("RGB")
    shown = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", shown.size, WHITE), shown).convert("RGB")


def _squared(pixels: Pixels, ground: tuple[int, ...]) -> Pixels:
    height, width = pixels.shape[:2]
    side = max(height, width)
    square = np.empty((side, side, len(ground)), np.uint8)
    square[:] = ground
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = pixels
    return square


def _resized(width: int, height: int, how: Preparation) -> tuple[int, int]:
    if how.shortest is None:
        return how.side, how.side
    long = int(how.shortest * max(width, height) / min(width, height))
    return (how.shortest, long) if width <= height else (long, how.shortest)


def _middle(pixels: Pixels, side: int) -> Pixels:
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    return np.ascontiguousarray(pixels[top : top + side, left : left + side])
