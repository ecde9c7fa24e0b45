"""Small random LLaVA checkpoints: a tower over a language model in any layout we read."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, LlavaConfig, LlavaForConditionalGeneration

from engine.protocol import Image
from engine.step import Seen
from tests.engine.checkpoints import Layout, Shape, Written, save, write_checkpoint

TOKEN = 95  # the placeholder
SIDE, PATCH, WIDTH = 28, 7, 32
CLIP: dict[str, Any] = {
    "model_type": "clip_vision_model", "hidden_size": WIDTH, "intermediate_size": 64,
    "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": SIDE, "patch_size": PATCH,
}  # fmt: skip
SIGLIP = CLIP | {"model_type": "siglip_vision_model"}
PREPROCESSOR: dict[str, Any] = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE},
    "do_center_crop": True, "do_resize": True, "do_rescale": True, "do_normalize": True,
    "do_convert_rgb": True, "resample": 3, "rescale_factor": 1 / 255,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}  # fmt: skip


@dataclass(frozen=True)
class SeeingCheckpoint:
    path: Path
    written: Written  # the language model by itself
    model: LlavaForConditionalGeneration

    @torch.no_grad()
    def expected(self, prompt: list[int], pixels: list[np.ndarray]) -> torch.Tensor:
        """Logits [T, V]; ``pixels``: prepared images."""
        given = {"pixel_values": torch.stack([scaled(p) for p in pixels])} if pixels else {}
        return self.model(torch.tensor([prompt]), **given).logits[0]


def scaled(pixels: np.ndarray) -> torch.Tensor:
    """As the checkpoint's processor scales them: [3, side, side]."""
    mean, std = (np.array(PREPROCESSOR[f"image_{k}"], np.float32) for k in ("mean", "std"))
    values = (pixels.astype(np.float64) / 255).astype(np.float32)
    return torch.from_numpy(((values - mean) / std).transpose(2, 0, 1).copy())


def write_seeing(
    path: Path,
    *,
    vision: dict[str, Any] = CLIP,
    layout: Layout | None = None,
    shape: Shape | None = None,
    prefix: str = "language_model.",
    **settings: Any,
) -> SeeingCheckpoint:
    """``prefix``: what the names of the language model's tensors begin with."""
    written = write_checkpoint(path.parent / f"{path.name}-text", shape or Shape(), layout)
    text = json.loads((written.path / "config.json").read_text())
    quantisation = text.pop("quantization_config", None)
    torch.manual_seed(7)
    kinds = {"vision_config": AutoConfig.for_model(**vision), "text_config": _plain(text)}
    config = LlavaConfig(**kinds, image_token_index=TOKEN, **settings)
    model = LlavaForConditionalGeneration._from_config(config, attn_implementation="eager")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    language = {
        name.replace("model.", "model.language_model.", 1): t for name, t in written.dense.items()
    }
    unexpected = model.load_state_dict(language, strict=False).unexpected_keys
    assert not unexpected
    tower = {
        name.removeprefix("model."): tensor
        for name, tensor in model.state_dict().items()
        if "language_model" not in name and not name.startswith("lm_head")
    }
    stored = {prefix + name: tensor for name, tensor in written.stored.items()}
    facts: dict[str, Any] = {"architectures": ["LlavaForConditionalGeneration"], **settings}
    facts |= {"model_type": "llava", "image_token_index": TOKEN, "dtype": "float32"}
    facts |= {"text_config": text, "vision_config": vision}
    if quantisation:
        facts["quantization_config"] = quantisation
    save(path, stored | tower, facts)
    (path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return SeeingCheckpoint(path, written, model.float().eval())


def _plain(text: dict[str, Any]) -> Any:
    return AutoConfig.for_model(**{k: v for k, v in text.items() if k != "architectures"})


def pixels(seed: int) -> np.ndarray:
    """A colour for each patch: noise would be grey to the tower."""
    count = SIDE // PATCH
    colours = np.random.default_rng(seed).integers(0, 256, (count, count, 3), dtype=np.uint8)
    return colours.repeat(PATCH, axis=0).repeat(PATCH, axis=1)


def image_at(start: int, seed: int, tokens: int = 16) -> Image:
    raw = pixels(seed).tobytes()
    return Image(start, tokens, hashlib.sha256(raw).digest(), raw)


def seen(images: list[Image], start: int, stop: int) -> tuple[Seen, ...]:
    found = []
    for image in images:
        first, last = max(start, image.start), min(stop, image.start + image.tokens)
        if first < last:
            found.append(Seen(image, first - start, first - image.start, last - first))
    return tuple(found)
