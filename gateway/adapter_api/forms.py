"""What clients send and get, as OpenAPI describes it."""

from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from gateway.adapter_api.staging import Part
from gateway.catalog.models import Adapter, AdapterAlias, AdapterUpload

Name = Annotated[str, Field(min_length=1, max_length=64)]
Reference = Annotated[str, Field(min_length=1, max_length=80, description="name or name@version")]
Sha256 = Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class CreateUpload(Form):
    name: Name
    alias: Name | None = Field(None, description="moved to the version once it is ready")
    base_model: str = Field(
        "", max_length=200, description="that it is for, where several are served and several fit"
    )
    base_fingerprint: str = Field("", max_length=80, description="of the base it was trained on")
    force: bool = Field(False, description="publish it although it names another base")


class CompleteUpload(Form):
    sha256: dict[str, Sha256] = Field(default_factory=dict, description="of whole files")
    wait: bool = Field(True, description="answer when it is published or refused")


class CanaryShare(Form):
    version: Reference
    percent: int = Field(ge=1, le=100, description="of the traffic, by a hash of who asks")


class SetAlias(Form):
    version: Reference
    canary: CanaryShare | None = None


class SetQuota(Form):
    max_adapters: int = Field(ge=0)
    max_bytes: int = Field(ge=0)


class LoadLora(BaseModel):
    lora_name: Name
    lora_path: str = Field(min_length=1, max_length=4096)
    load_inplace: bool = False


class UnloadLora(BaseModel):
    lora_name: Name
    lora_int_id: int | None = None


def version_of(row: Adapter, *, report: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": row.id,
        "object": "adapter.version",
        "adapter": row.name,
        "version": row.version,
        "model": f"{row.name}@{row.version}",
        "state": row.state,
        "digest": row.digest,
        "rank": row.rank,
        "bytes": row.nbytes,
        "pinned": row.pinned,
        "base_fingerprint": row.base_fingerprint or None,
        "created": int(row.created_at.timestamp()),
        "retired": int(row.retired_at.timestamp()) if row.retired_at else None,
        "ends": int(row.ends_at.timestamp()) if row.ends_at else None,
    }
    if report:
        found["report"] = orjson.loads(row.report) if row.report else None
    return found


def alias_of(row: AdapterAlias, names: dict[str, str]) -> dict[str, Any]:
    """``names``: of versions, by id."""
    canary = None
    if row.canary_id is not None:
        canary = {"version": names.get(row.canary_id), "percent": row.canary_percent}
    return {
        "object": "adapter.alias",
        "alias": row.name,
        "version": names.get(row.adapter_id),
        "previous": names.get(row.previous_id or ""),
        "canary": canary,
        "changed": int(row.changed_at.timestamp()),
    }


def upload_of(row: AdapterUpload, parts: dict[str, list[Part]]) -> dict[str, Any]:
    detail = orjson.loads(row.detail) if row.detail else {}
    error = None if "stage" in detail else detail or None  # also of one that can be completed again
    return {
        "id": row.id,
        "object": "adapter.upload",
        "adapter": row.name,
        "alias": row.alias,
        "state": row.state,
        "stage": detail.get("stage"),
        "error": error,
        "version_id": row.adapter_id,
        "bytes_received": sum(part.nbytes for each in parts.values() for part in each),
        "files": {
            file: [{"part": part.number, "bytes": part.nbytes} for part in each]
            for file, each in parts.items()
        },
        "created": int(row.created_at.timestamp()),
    }
