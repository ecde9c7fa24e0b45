"""An adapter as tensors of the compute dtype, per module, with the scale folded in."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adapters.base_spec import BaseSpec
from adapters.errors import AdapterInvalid
from adapters.keys import EMBEDDING, HEAD, Part
from adapters.manifest import WEIGHTS_FILE, AdapterManifest, ModuleLora, listed
from adapters.tensor_file import TensorFile, TensorInfo
from adapters.validate import shape_problems
from adapters.values import as_bits, as_dtype, as_float32, is_finite

STORED_AS = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}


@dataclass(frozen=True, slots=True)
class Factor:
    """What an adapter does to one linear layer: see ``ModuleLora``. r may be 0.

    A and B may be codes of 8 bits (``narrow``), each row's beside the largest of its values.
    """

    a: Tensor  # [r, K]
    b: Tensor  # [N, r], scaled
    lora_bias: Tensor | None = None  # [N], scaled
    bias: Tensor | None = None  # [N], in place of the base's
    magnitude: Tensor | None = None  # [N] float32: norms of the rows of the adapted weight
    a_largest: Tensor | None = None  # [r], where a is codes
    b_largest: Tensor | None = None  # [N], where b is

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors if tensor is not None)

    @property
    def gained(self) -> bool:
        """Its output is scaled, column by column."""
        return self.magnitude is not None

    @property
    def biased(self) -> bool:
        """A vector is added to its output, beyond A and B."""
        return self.lora_bias is not None or self.bias is not None or self.gained

    @property
    def _tensors(self) -> tuple[Tensor | None, ...]:
        vectors = self.lora_bias, self.bias, self.magnitude
        return self.a, self.b, *vectors, self.a_largest, self.b_largest


@dataclass(frozen=True, slots=True)
class Table:
    """What an adapter does to the embeddings or the head, one row [H] per token.

    W' = whole or W; then its rows ``ids`` are ``rows``; then W' += low high.
    """

    whole: Tensor | None = None  # [V, H]
    rows: Tensor | None = None  # [n, H]
    ids: tuple[int, ...] = ()
    low: Tensor | None = None  # [V, r]
    high: Tensor | None = None  # [r, H]

    @property
    def nbytes(self) -> int:
        found = (self.whole, self.rows, self.low, self.high)
        return sum(tensor.nbytes for tensor in found if tensor is not None)


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    digest: str
    rank: int
    factors: Mapping[tuple[int, str], Factor]  # by (layer, module), e.g. (3, "q_proj")
    tables: Mapping[str, Table] = field(default_factory=dict)  # by EMBEDDING and HEAD

    @property
    def nbytes(self) -> int:
        factors = sum(factor.nbytes for factor in self.factors.values())
        return factors + sum(table.nbytes for table in self.tables.values())


def pack(source: AdapterManifest | Path | str, base: BaseSpec, dtype: torch.dtype) -> PackedAdapter:
    """Raises AdapterInvalid when it does not fit the base or its values do not fit ``dtype``.

    Runs beside a serving loop, so it computes in numpy on one thread: torch would start a team of
    threads for each thread that loads, and they would fight the forward pass for its cores.
    """
    manifest = source if isinstance(source, AdapterManifest) else AdapterManifest.read(source)
    problems = shape_problems(manifest.modules.values(), base)
    if problems:
        raise AdapterInvalid(problems)
    factors: dict[tuple[int, str], Factor] = {}
    tables: dict[str, Table] = {}
    with TensorFile.open(manifest.directory / WEIGHTS_FILE) as file:
        reader = _Reader(file, dtype)
        for site, module in manifest.modules.items():
            if site.outer:
                tables[site.module] = reader.table(module, manifest.tokens.get(site.module, ()))
            else:
                factors[site.layer, site.module] = reader.factor(module, base)
    if reader.broken:
        raise AdapterInvalid([f"values that are not finite in {dtype}: {listed(reader.broken)}"])
    if base.tie_word_embeddings and EMBEDDING in manifest.tokens:
        rows = tables[EMBEDDING]
        head = tables.setdefault(HEAD, rows)
        if head.rows is None:
            tables[HEAD] = replace(head, rows=rows.rows, ids=rows.ids)
    return PackedAdapter(manifest.digest, manifest.rank, factors, tables)


class _Reader:
    """Tensors of one file in one dtype; ``broken`` lists modules whose values do not fit it."""

    def __init__(self, file: TensorFile, dtype: torch.dtype) -> None:
        self._file, self._dtype = file, dtype
        self.broken: list[str] = []

    def factor(self, module: ModuleLora, base: BaseSpec) -> Factor:
        inputs, outputs = base.shape_of(module.site.module)
        a, b = self._read(module, Part.A), self._read(module, Part.B, module.scale)
        return Factor(
            a=torch.zeros((0, inputs), dtype=self._dtype) if a is None else a,
            b=torch.zeros((outputs, 0), dtype=self._dtype) if b is None else b,
            lora_bias=self._read(module, Part.LORA_BIAS, module.scale, torch.float32),
            bias=self._read(module, Part.BIAS, 1.0, torch.float32),
            magnitude=self._read(module, Part.MAGNITUDE, 1.0, torch.float32),
        )

    def table(self, module: ModuleLora, ids: tuple[int, ...]) -> Table:
        a, b = self._read(module, Part.A), self._read(module, Part.B, module.scale)
        if a is not None and b is not None and module.site.module == EMBEDDING:
            a, b = b.t().contiguous(), a.t().contiguous()  # A is [r, V] there, B [H, r]
        return Table(
            whole=self._read(module, Part.WEIGHT),
            rows=self._read(module, Part.TOKENS),
            ids=ids,
            low=b,
            high=a,
        )

    def _read(
        self,
        module: ModuleLora,
        part: Part,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> Tensor | None:
        tensor = module.parts.get(part)
        if tensor is None:
            return None
        packed = _packed(self._file, tensor, dtype or self._dtype, scale=scale)
        if packed is None and module.name not in self.broken:
            self.broken.append(module.name)
        return packed


def _packed(
    file: TensorFile, tensor: TensorInfo, dtype: torch.dtype, *, scale: float
) -> Tensor | None:
    """The tensor times ``scale``, or None if any element is not finite in ``dtype``."""
    data, wanted = file.read(tensor), STORED_AS[dtype]
    bits = as_bits(data, tensor.dtype)
    if not is_finite(bits, tensor.dtype):
        return None
    if tensor.dtype != wanted or scale != 1.0:
        values = as_float32(data, tensor.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            values *= np.float32(scale)
        bits = as_dtype(values, wanted)
        if not is_finite(bits, wanted):
            return None
    return torch.from_numpy(bits).view(dtype).view(tensor.shape)
