"""What a checkpoint that sees says about images: how each is prepared, what it is in a prompt.

The gateway cuts an image to the tower's size and puts placeholders into the prompt, the engine
gives the values their scale; both read the same files here. A setting that would change the
result and is not computed is refused by name. Needs no tensor library.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.language_part import sees
from engine.errors import CheckpointInvalid

CHANNELS = 3  # red, green, blue
FILE, WHOLE_FILE = "preprocessor_config.json", "processor_config.json"
PROCESSORS = ("CLIPImageProcessor", "SiglipImageProcessor", "LlavaImageProcessor")
FILTERS = range(6)  # Pillow's numbers of them
BICUBIC = 3
TOWERS = ("clip_vision_model", "siglip_vision_model")
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """From any image to one of the tower's size, and from its values to the tower's.

    In this order: squared on a ground of this colour, resized, cut out of the middle, scaled.
    """

    side: int  # of the result, in pixels
    ground: tuple[int, ...] | None = None  # None: it is not squared
    shortest: int | None = None  # what its shorter side becomes; None: both become ``side``
    resample: int = BICUBIC
    factor: float = 1 / 255
    mean: tuple[float, ...] = (0.0,) * CHANNELS
    std: tuple[float, ...] = (1.0,) * CHANNELS

    @property
    def nbytes(self) -> int:
        """Of an image that is prepared: [side, side, CHANNELS] of 8 bits each."""
        return self.side * self.side * CHANNELS


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeing:
    token: int  # the placeholder
    tokens: int  # placeholders that an image takes
    preparation: Preparation

    @classmethod
    def of(cls, directory: Path) -> "Seeing | None":
        """None where the checkpoint reads text alone. Raises CheckpointInvalid."""
        config = _json(directory / "config.json")
        if not sees(config):
            return None
        vision = config.get("vision_config")
        vision = vision if isinstance(vision, dict) else {}
        side, patch = _size(vision, "image_size"), _size(vision, "patch_size")
        token = config.get("image_token_index", config.get("image_token_id"))
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise CheckpointInvalid(
                f"config.json: image_token_index={token!r}; expected the placeholder's number"
            )
        rows = (side // patch) ** 2 + has_class_row(vision) - skips_first(config)
        return cls(token=token, tokens=rows, preparation=_preparation(directory, side))


def has_class_row(vision: Config) -> bool:
    """Whether the tower has a row that stands for the image, before those of its patches.

    Raises CheckpointInvalid.
    """
    kind = vision.get("model_type", TOWERS[0])
    if kind not in TOWERS:
        raise CheckpointInvalid(
            f"config.json: vision_config.model_type={kind!r}; expected {' or '.join(TOWERS)}"
        )
    return bool(kind == TOWERS[0])


def skips_first(config: Config) -> bool:
    """Whether the tower's first row is left out of the prompt. Raises CheckpointInvalid."""
    strategy = config.get("vision_feature_select_strategy", "default")
    if strategy not in ("default", "full"):
        raise CheckpointInvalid(
            f"config.json: vision_feature_select_strategy={strategy!r}; expected 'default' or "
            "'full'"
        )
    return bool(strategy == "default")


def _preparation(directory: Path, side: int) -> Preparation:
    found, source = _json(directory / FILE), FILE
    if not found:
        found, source = _json(directory / WHOLE_FILE).get("image_processor") or {}, WHOLE_FILE
    if not found:
        raise CheckpointInvalid(
            f"{directory}: neither {FILE} nor {WHOLE_FILE} says how images are prepared"
        )
    _check(source, found)
    mean, std = (_three(source, found, key) for key in ("image_mean", "image_std"))
    if not found.get("do_normalize", True):
        mean, std = (0.0,) * CHANNELS, (1.0,) * CHANNELS
    resample = found.get("resample", BICUBIC)
    factor = found.get("rescale_factor", 1 / 255) if found.get("do_rescale", True) else 1.0
    return Preparation(
        side=side,
        ground=tuple(int(x * 255) for x in mean) if found.get("do_pad") else None,
        shortest=_shortest(source, found, side),
        resample=resample,
        factor=float(factor),
        mean=mean,
        std=std,
    )


def _check(source: str, found: Config) -> None:
    kind = found.get("image_processor_type", PROCESSORS[0])
    plain = str(kind).removesuffix("Fast").removesuffix("Pil")
    if plain not in PROCESSORS:
        raise _unlike(source, "image_processor_type", kind, " or ".join(PROCESSORS))
    if not found.get("do_resize", True):
        raise _unlike(source, "do_resize", False, "true")
    if found.get("do_pad") and plain != PROCESSORS[2]:
        raise _unlike(source, "do_pad", True, f"false with {plain}")
    resample = found.get("resample", BICUBIC)
    if not isinstance(resample, int) or resample not in FILTERS:
        raise _unlike(source, "resample", resample, "a filter's number from 0 to 5")
    factor = found.get("rescale_factor", 1 / 255)
    if not isinstance(factor, int | float) or not 0 < factor <= 1:
        raise _unlike(source, "rescale_factor", factor, "a number above 0, at most 1")


def _shortest(source: str, found: Config, side: int) -> int | None:
    """What the shorter side becomes. The result must be what the tower takes."""
    size, crop = found.get("size"), found.get("crop_size")
    square = {"height": side, "width": side}
    crops = found.get("do_center_crop", crop is not None)
    if crops and crop not in (side, square):
        raise _unlike(source, "crop_size", crop, f"{side}, the tower's image_size")
    edge = size.get("shortest_edge") if isinstance(size, dict) and len(size) == 1 else size
    if isinstance(edge, int) and crops and edge >= side:
        return edge
    if size == square:
        return None
    wanted = f"{square}, or a shortest_edge of at least {side} and do_center_crop"
    raise _unlike(source, "size", size, wanted)


def _three(source: str, found: Config, key: str) -> tuple[float, ...]:
    values = found.get(key)
    three = isinstance(values, list) and len(values) == CHANNELS
    if not three or not all(isinstance(value, int | float) for value in values or ()):
        raise _unlike(source, key, values, f"{CHANNELS} numbers")
    if key == "image_std" and not all(values or ()):
        raise _unlike(source, key, values, "numbers that are not 0")
    return tuple(float(value) for value in values or ())


def _size(vision: Config, key: str) -> int:
    value = vision.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointInvalid(
            f"config.json: vision_config.{key}={value!r}; expected a positive integer"
        )
    return value


def _unlike(source: str, key: str, found: object, wanted: str) -> CheckpointInvalid:
    return CheckpointInvalid(f"{source}: {key}={found!r}; expected {wanted}")


def _json(file: Path) -> dict[str, Any]:
    """Empty where there is no such file."""
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointInvalid(f"{file}: not readable JSON ({error})") from error
    if not isinstance(found, dict):
        raise CheckpointInvalid(f"{file}: expected a JSON object")
    return found
