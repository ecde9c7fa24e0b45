"""Shapes of real models, as data: what random checkpoints are made of and floors computed from."""

from dataclasses import dataclass, field

EIGHT_BITS = ("fp8", "fp8-block", "int8")
FORMATS = ("awq", "gptq", "gptq-act-order", "fp16", *EIGHT_BITS)  # on disk; see checkpoints
MAX_POSITION = 131072  # where a shape says nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One decoder-only model. Sizes in elements; ``extra`` goes into config.json as it is."""

    name: str
    model_type: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    extra: dict[str, object] = field(default_factory=dict)

    def linears(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of one layer's seven linears, by module name."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q = self.num_attention_heads * self.head_dim
        kv = self.num_key_value_heads * self.head_dim
        return {
            "self_attn.q_proj": (hidden, q),
            "self_attn.k_proj": (hidden, kv),
            "self_attn.v_proj": (hidden, kv),
            "self_attn.o_proj": (q, hidden),
            "mlp.gate_proj": (hidden, inner),
            "mlp.up_proj": (hidden, inner),
            "mlp.down_proj": (inner, hidden),
        }

    @property
    def linear_parameters(self) -> int:
        """Weights in all layers' linears."""
        return self.num_hidden_layers * sum(k * n for k, n in self.linears().values())

    @property
    def kv_elements(self) -> int:
        """K and V elements that one token of context holds, all layers."""
        return self.num_hidden_layers * 2 * self.num_key_value_heads * self.head_dim

    @property
    def max_position(self) -> int:
        found = self.extra.get("max_position_embeddings", MAX_POSITION)
        assert isinstance(found, int)
        return found

    def lora_elements(self, rank: int) -> int:
        """Elements of an adapter of this rank on all seven linears."""
        per_layer = sum(k + n for k, n in self.linears().values())
        return self.num_hidden_layers * rank * per_layer

    def config(self) -> dict[str, object]:
        """The model part of config.json, in the key spelling every loader knows."""
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "tie_word_embeddings": self.tie_word_embeddings,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "torch_dtype": "float16",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "max_position_embeddings": MAX_POSITION,
            **self.extra,
        }


LLAMA_8B = Shape(
    name="llama-3.1-8b",
    model_type="llama",
    architecture="LlamaForCausalLM",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    extra={"rope_theta": 500000.0, "bos_token_id": 128000, "eos_token_id": 128001},
)
LLAMA_70B = Shape(
    name="llama-3.1-70b",
    model_type="llama",
    architecture="LlamaForCausalLM",
    vocab_size=128256,
    hidden_size=8192,
    intermediate_size=28672,
    num_hidden_layers=80,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=128,
    extra={"rope_theta": 500000.0, "bos_token_id": 128000, "eos_token_id": 128001},
)
QWEN25_7B = Shape(
    name="qwen2.5-7b",
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    head_dim=128,
    qkv_bias=True,
    extra={
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    },
)
QWEN3_8B = Shape(
    name="qwen3-8b",
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    qk_norm=True,
    extra={
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    },
)
MISTRAL_7B = Shape(
    name="mistral-7b-v0.1",
    model_type="mistral",
    architecture="MistralForCausalLM",
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    extra={"rope_theta": 10000.0, "max_position_embeddings": 32768, "sliding_window": 4096},
)
TINY = Shape(
    name="tiny",
    model_type="llama",
    architecture="LlamaForCausalLM",
    vocab_size=1024,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    extra={"rope_theta": 10000.0, "max_position_embeddings": 2048},
)
SHAPES = {s.name: s for s in (LLAMA_8B, LLAMA_70B, QWEN25_7B, QWEN3_8B, MISTRAL_7B, TINY)}
