"""Runs where GPTQModel is: reads a job (``job.py``), quantises, saves. Needs nothing of ours.

python worker.py JOB.json
"""

import json
import sys
from typing import Any

import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from gptqmodel.quantization import FORMAT, METHOD


def main(path: str) -> None:
    with open(path) as file:
        job: dict[str, Any] = json.load(file)
    is_awq = job["method"] == "awq"
    settings: dict[str, Any] = {
        "bits": job["bits"],
        "group_size": job["group"],
        "sym": job["symmetric"],
    }
    if is_awq:
        settings |= {"quant_method": METHOD.AWQ, "format": FORMAT.GEMM}
    else:
        settings |= {"desc_act": job["act_order"]}
    # "auto" would make bfloat16 of it whatever the checkpoint says; AWQ takes no float32.
    model = GPTQModel.load(job["model"], QuantizeConfig(**settings), dtype=torch.float16)
    calibration = [
        {"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in job["calibration"]
    ]
    on_cpu = is_awq and not torch.cuda.is_available()
    backend = {"backend": BACKEND.AWQ_TORCH} if on_cpu else {}  # its own choice wants CUDA
    model.quantize(calibration, batch_size=job["batch"], **backend)
    model.save(job["out"])


if __name__ == "__main__":
    main(sys.argv[1])
