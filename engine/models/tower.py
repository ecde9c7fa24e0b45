"""The tower of a model that sees: an image to the vectors that stand in a prompt for it.

A CLIP or SigLIP transformer over patches, then a projector into the language model's width. One
image at a time: its vectors do not depend on which others are about. Weights are dense, in the
compute dtype. Letters: N rows (patches, perhaps one more), C the tower's width, H the language
model's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from engine.errors import CheckpointInvalid
from engine.loading import Weights
from engine.models.fields import Config, count
from engine.seeing import CHANNELS, Preparation, Seeing, has_class_row, skips_first

TOWER, PROJECTOR = "vision_tower", "multi_modal_projector"
UNUSED = ("post_layernorm.", "head.", "embeddings.position_ids")  # what a prompt never sees
ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerSpec:
    width: int
    inner: int
    layers: int
    heads: int
    side: int  # of an image, in pixels
    patch: int  # side of a patch
    eps: float
    activation: str
    class_row: bool  # the first row stands for the image; as CLIP, with a norm before the layers
    taken: tuple[int, ...]  # behind how many layers the vectors are taken, side by side
    skips_first: bool
    projector_activation: str
    projector_bias: bool

    @property
    def rows(self) -> int:
        return int((self.side // self.patch) ** 2 + self.class_row)

    @classmethod
    def read(cls, config: Config) -> "TowerSpec":
        """From a whole ``config.json``. Raises CheckpointInvalid."""
        vision: dict[str, Any] = config.get("vision_config") or {}
        clip = has_class_row(vision)
        width, heads = count(vision, "hidden_size"), count(vision, "num_attention_heads")
        layers = count(vision, "num_hidden_layers")
        if width % heads:
            raise CheckpointInvalid(
                f"config.json: vision_config.hidden_size={width} is not a multiple of "
                f"num_attention_heads={heads}"
            )
        usual = ("quick_gelu", 1e-5) if clip else ("gelu_pytorch_tanh", 1e-6)
        bias = config.get("multimodal_projector_bias")
        return cls(
            width=width,
            inner=count(vision, "intermediate_size"),
            layers=layers,
            heads=heads,
            side=count(vision, "image_size"),
            patch=count(vision, "patch_size"),
            eps=float(vision.get("layer_norm_eps") or usual[1]),
            activation=_activation(vision.get("hidden_act") or usual[0]),
            class_row=clip,
            taken=_taken(config.get("vision_feature_layer", -2), layers),
            skips_first=skips_first(config),
            projector_activation=_activation(config.get("projector_hidden_act") or "gelu"),
            projector_bias=True if bias is None else bool(bias),
        )


class Tower:
    def __init__(self, weights: Weights, config: Config, seeing: Seeing) -> None:
        """``config``: the whole file's. Raises CheckpointInvalid."""
        self.spec = spec = TowerSpec.read(config)
        self._weights, place = weights, weights.place
        self._scale = scale_table(seeing.preparation).to(place.device, place.dtype)
        patches = (spec.width, CHANNELS, spec.patch, spec.patch)
        self._patch = self._of(f"{TOWER}.embeddings.patch_embedding.weight", *patches)
        self._patch_bias = self._class = None
        if spec.class_row:
            self._class = self._of(f"{TOWER}.embeddings.class_embedding", spec.width)
            self._before = self._norm(f"{TOWER}.pre_layrnorm")
        else:
            self._patch_bias = self._of(f"{TOWER}.embeddings.patch_embedding.bias", spec.width)
        positions = f"{TOWER}.embeddings.position_embedding.weight"
        self._positions = self._of(positions, spec.rows, spec.width)
        deepest = max(spec.taken)
        self._layers = [self._layer(f"{TOWER}.encoder.layers.{i}") for i in range(deepest)]
        wide, hidden = spec.width * len(spec.taken), weights.spec.hidden_size
        bias = spec.projector_bias
        self._first = self._linear(f"{PROJECTOR}.linear_1", wide, hidden, bias=bias)
        self._second = self._linear(f"{PROJECTOR}.linear_2", hidden, hidden, bias=bias)
        above = [f"encoder.layers.{i}." for i in range(deepest, spec.layers)]
        weights.pass_over([f"{TOWER}.{part}" for part in (*UNUSED, *above)])

    @torch.inference_mode()
    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """[side, side, CHANNELS] uint8 to what stands for the image: [tokens, H]."""
        spec = self.spec
        x = self._embed(pixels)
        behind = {0: x}
        for number, layer in enumerate(self._layers, 1):
            x = layer(x)
            behind[number] = x
        rows = torch.cat([behind[depth] for depth in spec.taken], dim=-1)
        rows = rows[1:] if spec.skips_first else rows
        act = ACTIVATIONS[spec.projector_activation]
        return self._second(act(self._first(rows)))

    def _embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """[N, C]."""
        channels = torch.arange(CHANNELS, device=pixels.device)
        image = self._scale[channels, pixels.long()].permute(2, 0, 1)
        patches = F.conv2d(image[None], self._patch, self._patch_bias, stride=self.spec.patch)
        x = patches[0].flatten(1).t()
        if self._class is None:
            return x + self._positions
        x = torch.cat([self._class[None], x]) + self._positions
        return self._before(x)

    def _of(self, name: str, *shape: int) -> torch.Tensor:
        place = self._weights.place
        return self._weights.plain(name, shape).to(place.device, place.dtype)

    def _linear(self, name: str, inputs: int, outputs: int, *, bias: bool = True) -> "_Linear":
        weight = self._of(f"{name}.weight", outputs, inputs)
        return _Linear(weight, self._of(f"{name}.bias", outputs) if bias else None)

    def _norm(self, name: str) -> "_Norm":
        width = self.spec.width
        weight, bias = (self._of(f"{name}.{part}", width) for part in ("weight", "bias"))
        return _Norm(weight, bias, self.spec.eps)

    def _layer(self, name: str) -> "_Layer":
        width, inner = self.spec.width, self.spec.inner
        parts = [self._linear(f"{name}.self_attn.{part}_proj", width, width) for part in "qkv"]
        return _Layer(
            heads=self.spec.heads,
            before_attention=self._norm(f"{name}.layer_norm1"),
            qkv=_joined(parts),
            out=self._linear(f"{name}.self_attn.out_proj", width, width),
            before_mlp=self._norm(f"{name}.layer_norm2"),
            up=self._linear(f"{name}.mlp.fc1", width, inner),
            act=ACTIVATIONS[self.spec.activation],
            down=self._linear(f"{name}.mlp.fc2", inner, width),
        )


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: torch.Tensor
    bias: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    heads: int
    before_attention: _Norm
    qkv: _Linear
    out: _Linear
    before_mlp: _Norm
    up: _Linear
    act: Callable[[torch.Tensor], torch.Tensor]
    down: _Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[N, C] to the same."""
        rows, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(rows, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(1, 2, 0, 3)[:, None].unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).reshape(rows, width)
        x = x + self.out(seen)
        return x + self.down(self.act(self.up(self.before_mlp(x))))


def scale_table(how: Preparation) -> torch.Tensor:
    """[CHANNELS, 256] float32: what each of the 256 values of a pixel is to the tower."""
    values = (torch.arange(256, dtype=torch.float64) * how.factor).float()
    mean, std = torch.tensor(how.mean)[:, None], torch.tensor(how.std)[:, None]
    return (values - mean) / std


def _joined(parts: list[_Linear]) -> _Linear:
    biases = [part.bias for part in parts if part.bias is not None]
    return _Linear(torch.cat([part.weight for part in parts]), torch.cat(biases))


def _activation(name: object) -> str:
    if name not in ACTIVATIONS:
        raise CheckpointInvalid(
            f"config.json: the tower's activation is {name!r}; expected {' or '.join(ACTIVATIONS)}"
        )
    return str(name)


def _taken(value: Any, layers: int) -> tuple[int, ...]:
    """``vision_feature_layer``: a number or several, from the end where negative."""
    numbers = value if isinstance(value, list) and value else [value]
    for number in numbers:
        fits = isinstance(number, int) and -layers - 1 <= number <= layers
        if isinstance(number, bool) or not fits:
            raise CheckpointInvalid(
                f"config.json: vision_feature_layer={value!r}; expected layers from "
                f"{-layers - 1} to {layers}"
            )
    return tuple(number % (layers + 1) for number in numbers)
