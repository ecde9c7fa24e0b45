"""What transformers and PEFT compute from the dense weights a checkpoint stands for."""

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.engine.checkpoints import Written

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def transformers_model(written: Written) -> PreTrainedModel:
    config = json.loads((written.path / "config.json").read_text())
    config.pop("quantization_config", None)
    plain = written.path.parent / "plain"
    plain.mkdir(exist_ok=True)
    (plain / "config.json").write_text(json.dumps(config))
    settings = AutoConfig.from_pretrained(plain)
    model = AutoModelForCausalLM.from_config(settings, attn_implementation="eager")
    assert type(model).__name__ == config["architectures"][0]
    state = dict(written.dense)
    if written.shape.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not missing
    assert not unexpected
    return model.float().eval()


def tokens(count: int, seed: int = 0, vocab: int = 96) -> list[int]:
    return torch.randint(3, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def expected(model: PreTrainedModel, prompt: list[int]) -> torch.Tensor:
    return model(torch.tensor([prompt])).logits[0]


def write_adapter(path: Path, written: Written, settings: dict[str, Any], seed: int = 0) -> Path:
    torch.manual_seed(seed)
    model = get_peft_model(
        transformers_model(written), LoraConfig(task_type="CAUSAL_LM", **settings)
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(path)
    return path


def peft_logits(written: Written, path: Path, prompt: list[int]) -> torch.Tensor:
    return expected(PeftModel.from_pretrained(transformers_model(written), path).eval(), prompt)
