"""The least time a forward pass can take: bytes over bandwidth or operations over rate.

A step runs its parts one after another, so its floor is the sum over parts of the larger of the
two times. A part's bytes are those that must be read or written once: packed weights with their
scales and zeros, the head, the KV of every row's context, each distinct adapter once, fp32 logits.
Activations between the parts are not counted: they can stay in the cache.
"""

from dataclasses import dataclass

from engine.bench.shapes import Shape


@dataclass(frozen=True, slots=True)
class Device:
    """Ceilings measured on one device with a large copy and a large matrix product."""

    name: str
    bandwidth: float  # bytes per second
    rate: float  # dense 16-bit FLOP per second
    memory: int  # bytes

    def seconds(self, moved: float, operations: float) -> float:
        return max(moved / self.bandwidth, operations / self.rate)


H200 = Device("NVIDIA H200", bandwidth=4.3e12, rate=790e12, memory=150_754_820_096)
DEVICES = {"h200": H200}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes per element of what a step reads."""

    weight_bits: int = 4  # 16 means unquantised
    group: int = 128  # rows that share a scale and a zero; 0 for unquantised
    head: float = 2.0
    kv: float = 2.0
    adapter: float = 2.0

    @property
    def weight(self) -> float:
        """Bytes per weight, its share of fp16 scale and packed zero included."""
        shared = (2.0 + self.weight_bits / 8) / self.group if self.group else 0.0
        return self.weight_bits / 8 + shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One decode step: ``rows`` sequences at ``context`` tokens, ``adapters`` of them distinct."""

    rows: int
    context: int
    adapters: int = 0
    rank: int = 16


def decode_floor(shape: Shape, work: Work, device: Device, precision: Precision) -> float:
    """Seconds of one decode step."""
    layers, hidden, vocab = shape.num_hidden_layers, shape.hidden_size, shape.vocab_size
    q = shape.num_attention_heads * shape.head_dim
    distinct = min(work.adapters, work.rows)
    lora = shape.lora_elements(work.rank)
    lora_rows = work.rows if work.adapters else 0
    small = work.rows * vocab * 4 + (2 * layers + 1) * hidden * 2
    parts = (
        (shape.linear_parameters * precision.weight, 2 * shape.linear_parameters * work.rows),
        (vocab * hidden * precision.head, 2 * vocab * hidden * work.rows),
        (work.rows * (work.context + 1) * shape.kv_elements * precision.kv,
         4 * work.rows * work.context * q * layers),
        (distinct * lora * precision.adapter, 2 * lora * lora_rows),
        (small, 0),
    )  # fmt: skip
    return sum(device.seconds(moved, operations) for moved, operations in parts)


def prefill_floor(shape: Shape, *, prompts: int, length: int, rank: int, device: Device) -> float:
    """Seconds to compute ``prompts`` prompts of ``length`` tokens, one token drawn each.

    Compute bound for any useful size, so only operations count. ``rank`` 0 means no adapters.
    """
    tokens = prompts * length
    q = shape.num_attention_heads * shape.head_dim
    linear = 2 * shape.linear_parameters * tokens
    attention = shape.num_hidden_layers * 4 * q * prompts * length * (length + 1) / 2
    lora = 2 * shape.lora_elements(rank) * tokens if rank else 0
    head = 2 * shape.vocab_size * shape.hidden_size * prompts
    return (linear + attention + lora + head) / device.rate


def linear_floor(
    inputs: int, outputs: int, rows: int, device: Device, precision: Precision
) -> float:
    """Seconds of one quantised linear on ``rows`` rows."""
    moved = inputs * outputs * precision.weight + rows * 2 * (inputs + outputs)
    return device.seconds(moved, 2 * inputs * outputs * rows)


def narrow_adapter(rank: int) -> float:
    """Bytes of an element in 8 bits: about half are B's, a magnitude of 16 bits for each row."""
    return 1 + 1 / rank


def lora_floor(shape: Shape, work: Work, device: Device, precision: Precision) -> float:
    """Seconds of the adapters of one layer: each distinct one's matrices are read once."""
    elements = shape.lora_elements(work.rank) / shape.num_hidden_layers
    distinct = min(work.adapters, work.rows)
    return device.seconds(distinct * elements * precision.adapter, 2 * elements * work.rows)


def attention_floor(
    shape: Shape, work: Work, device: Device, *, chunk: int = 1, kv_bytes: float = 2.0
) -> float:
    """Seconds of one layer's attention: ``rows`` sequences, each with ``chunk`` new tokens.

    ``context`` counts the new tokens too; K and V are read once, q and the result moved once.
    """
    q = shape.num_attention_heads * shape.head_dim
    kv = shape.kv_elements / shape.num_hidden_layers
    moved = work.rows * (work.context * kv * kv_bytes + 4 * chunk * q)
    seen = chunk * work.context - chunk * (chunk - 1) / 2  # keys, over the chunk's queries
    return device.seconds(moved, 4 * q * seen * work.rows)
