"""Why an architecture is not served: what the engine would need to serve it.

A refusal is for people who brought such a checkpoint, so it says more than the name.
"""

from collections.abc import Mapping

EXPERTS = "a mixture-of-experts MLP: a router, grouped products over 4-bit experts and their LoRA"
LATENT = "latent attention (MLA): one compressed K and V per token in the pages"
STATE = "state-space or recurrent layers, with a state per sequence beside the pages of K and V"
LAYER_NORM = "LayerNorm with biases and an ungated MLP"
SIGHT = "a tower for images or audio other than CLIP or SigLIP in a LlavaForConditionalGeneration"
HEADLESS = "an output head: the checkpoint holds a model without one"
BIASES = "settings of biases under names of its own"
ALTERNATING = "local and global layers that alternate"

# The first fragment that an architecture's name contains speaks for it.
NEEDS: Mapping[str, str] = {
    "Moe": EXPERTS,
    "MoE": EXPERTS,
    "Mixtral": EXPERTS,
    "Dbrx": EXPERTS,
    "Arctic": EXPERTS,
    "GptOss": f"{EXPERTS}; attention sinks and MXFP4 weights",
    "DeepseekV": f"{EXPERTS}; {LATENT}",
    "Deepseek": EXPERTS,
    "Llama4": f"{EXPERTS}; layers without RoPE and attention in chunks",
    "Jamba": f"{STATE}; {EXPERTS}",
    "Qwen3Next": f"{STATE}; {EXPERTS}",
    "MiniCPM3": LATENT,
    "Mamba": STATE,
    "Rwkv": STATE,
    "RecurrentGemma": STATE,
    "ForConditionalGeneration": SIGHT,
    "VL": SIGHT,
    "Gemma2": f"{ALTERNATING}; soft-capped scores and logits, GELU gates, norms after each block",
    "Gemma3": f"{ALTERNATING}, each with its RoPE; GELU gates, norms after each block",
    "Gemma": "GELU gates, norms scaled by 1 + weight, embeddings scaled by sqrt(hidden_size)",
    "Phi3": "q, k and v, and gate and up, stored as one module each; RoPE of type longrope",
    "Phi": f"{LAYER_NORM}; attention and MLP side by side, RoPE on part of each head",
    "Ministral": f"{ALTERNATING}, or RoPE scaled by position in the scores",
    "SmolLM3": "layers without RoPE",
    "Cohere": "LayerNorm without biases, attention and MLP side by side, scaled logits",
    "Command": "LayerNorm without biases, attention and MLP side by side, scaled logits",
    "Olmoe": EXPERTS,
    "Granite": "multipliers on embeddings, residuals, scores and logits",
    "Olmo": "norms after each block, or over all of q and k at once",
    "Starcoder2": LAYER_NORM,
    "StableLm": f"{LAYER_NORM}; RoPE on part of each head",
    "ChatGLM": "q, k and v stored as one module; RoPE on part of each head, on adjacent pairs",
    "Glm": "RoPE on part of each head, on adjacent pairs; gate and up stored as one module",
    "InternLM3": BIASES,
    "SeedOss": BIASES,
    "InternLM": "q, k and v stored as one module",
    "Apertus": "an ungated MLP with xIELU, and norms of q and k",
    "Arcee": "an ungated MLP with squared ReLU",
    "NemotronH": STATE,
    "Nemotron": f"{LAYER_NORM} with squared ReLU; RoPE on part of each head",
    "DeciLM": "layers that differ in their shapes, some without attention",
    "Exaone4": f"{ALTERNATING}, the global ones without RoPE; norms after each block",
    "Exaone": "names of modules of its own",
    "MiniCPM": "multipliers on embeddings, residuals and logits",
    "Ernie4_5": "RoPE on adjacent pairs",
    "HunYuanDense": "norms of q and k after RoPE",
    "Baichuan": "q, k and v stored as one module; ALiBi in the larger models",
    "QWen": "the first Qwen's names of modules and its RoPE that depends on the prompt's length",
    "Falcon": f"{LAYER_NORM}; q, k and v stored as one module, attention and MLP side by side",
    "GPTNeoX": f"{LAYER_NORM}; q, k and v stored as one module, RoPE on part of each head",
    "GPT": f"{LAYER_NORM}; learned positions",
    "OPT": f"{LAYER_NORM}; learned positions",
    "Bloom": f"{LAYER_NORM}; ALiBi",
    "MPT": f"{LAYER_NORM}; ALiBi",
    "Bert": "a bidirectional encoder, which generates no text",
    "T5": "an encoder beside the decoder",
}


def what_it_needs(architecture: str) -> str | None:
    """For a name we know something about."""
    known = next((need for part, need in NEEDS.items() if part in architecture), None)
    return HEADLESS if known is None and architecture.endswith("Model") else known
