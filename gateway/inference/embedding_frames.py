"""The bytes of an answer of vectors, in OpenAI's shape. Never streamed."""

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.inference.answer import Counts, Written
from gateway.inference.choice import Delta
from gateway.inference.embedding import vector_of, written
from gateway.inference.frames import Frames


class EmbeddingFrames(Frames):
    endpoint = "embeddings"
    whole_object = "list"
    chunk_object = "list"
    id_prefix = "embd-"

    def chunk(self, index: int, delta: Delta) -> bytes:
        raise NotImplementedError("vectors are not streamed")

    def choice(self, index: int, written_one: Written) -> dict[str, Any]:
        embedding = self._order.embedding
        assert embedding is not None
        vector = vector_of(written_one.embedding, embedding.dimensions)
        return {
            "object": "embedding",
            "index": index,
            "embedding": written(vector, embedding.encoding),
        }

    def whole(self, written: Sequence[Written], counts: Counts) -> bytes:
        answer = {
            "object": "list",
            "data": [self.choice(index, one) for index, one in enumerate(written)],
            "model": self._order.target.public_name,
            "usage": {"prompt_tokens": counts.prompt, "total_tokens": counts.prompt},
        }
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
