"""lm-eval's ``local-completions`` over a base and an adapter: log-likelihoods and generation.

Runs in an environment of its own: ``python score_lm_eval.py READY_FILE``. The tasks beside this
file need no download; the tokenizer is the server's, found by ``/tokenizer_info``.
"""

import json
import math
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

HERE = Path(__file__).parent / "harness"
ready = json.loads(Path(sys.argv[1]).read_bytes())
tenant = ready["tenants"][0]
os.environ["OPENAI_API_KEY"] = tenant["api_key"]
scores = {}
with tempfile.TemporaryDirectory() as folder:
    for task in HERE.glob("*.yaml"):
        text = task.read_text().replace("DATA", str(HERE / "capitals.jsonl"))
        (Path(folder) / task.name).write_text(text)
    for model in tenant["models"][:2]:
        found = simple_evaluate(
            model="local-completions",
            model_args={
                "model": model,
                "base_url": f"{ready['base_url']}/completions",
                "auth_token": tenant["api_key"],
                "max_length": 512,
                "batch_size": 4,
                "num_concurrent": 2,
                "max_retries": 1,
            },
            tasks=["capitals", "surprise", "counting"],
            task_manager=TaskManager(include_path=folder, include_defaults=False),
            bootstrap_iters=0,
        )
        scores[model] = {
            "acc": found["results"]["capitals"]["acc,none"],
            "byte_perplexity": found["results"]["surprise"]["byte_perplexity,none"],
            "exact_match": found["results"]["counting"]["exact_match,none"],
        }
base, adapter = (scores[model] for model in tenant["models"][:2])
assert base["acc"] >= 0.8, scores
assert base["exact_match"] == 1.0, scores
assert all(math.isfinite(value) for one in scores.values() for value in one.values()), scores
assert 1 < base["byte_perplexity"] < 4, scores
assert adapter["byte_perplexity"] != base["byte_perplexity"], scores
sys.stdout.write(json.dumps({"lm-eval": version("lm_eval"), **scores}) + "\n")
