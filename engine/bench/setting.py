"""What is measured, and the row that a figure becomes beside the best peer's."""

from dataclasses import dataclass, replace

from engine.bench.floor import DEVICES, H200, Device, Precision, narrow_adapter
from engine.bench.rows import Row, best_peers
from engine.bench.shapes import EIGHT_BITS, Shape
from engine.config import AdapterDtype

NARROW_KV = 1 + 4 / 128  # bytes: a code and its share of a head's magnitude
STATISTICS = (" median", " P99")  # of a metric whose plain name the peers use


@dataclass(frozen=True, slots=True)
class Setting:
    """A model's shape, its format on disk, the rank of its adapters, and where it runs."""

    shape: Shape
    format: str
    rank: int = 16
    device: Device | None = H200  # None: one without known ceilings, so no floor and no peer
    narrow_kv: bool = False
    narrow_head: bool = False
    members: int = 1  # devices like ``device`` that compute together; floors are of one
    adapter_dtype: AdapterDtype = AdapterDtype.AUTO

    @property
    def precision(self) -> Precision:
        found = replace(self._stored, head=1.0) if self.narrow_head else self._stored
        coded = self.adapter_dtype.codes is not None
        return replace(found, adapter=narrow_adapter(self.rank)) if coded else found

    @property
    def _stored(self) -> Precision:
        kv = NARROW_KV if self.narrow_kv else 2.0
        if self.format in EIGHT_BITS:
            return Precision(weight_bits=8, group=0, kv=kv)
        if self.format == "fp16":
            return Precision(weight_bits=16, group=0, kv=kv)
        return Precision(kv=kv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number. ``op`` names a part of the model, or nothing."""

    bench: str
    metric: str
    value: float
    unit: str
    batch: int
    adapters: int = 0
    context: int = 0
    op: str = ""
    floor: float | None = None


def row(setting: Setting, figure: Figure) -> Row:
    plain = figure.metric
    for suffix in STATISTICS:
        plain = plain.removesuffix(suffix)
    key = (
        figure.bench, setting.shape.name, setting.format, figure.batch, figure.adapters, plain,
        figure.op,
    )  # fmt: skip
    peer = best_peers(setting.device.name).get(key) if setting.device else None
    return Row(
        bench=figure.bench, model=setting.shape.name, format=setting.format,
        rank=setting.rank if figure.adapters else 0, batch=figure.batch,
        adapters=figure.adapters, context=figure.context, metric=figure.metric,
        value=figure.value, unit=figure.unit, op=figure.op, floor=figure.floor,
        peer=peer.name if peer else "", peer_value=peer.value if peer else None,
        members=setting.members,
        kv="fp8" if setting.narrow_kv else "", head="int8" if setting.narrow_head else "",
        lora=setting.adapter_dtype.codes or "",
    )  # fmt: skip


def known_device(name: str) -> Device | None:
    """The ceilings of a device by the name its driver gives it."""
    return next((device for device in DEVICES.values() if device.name == name), None)
