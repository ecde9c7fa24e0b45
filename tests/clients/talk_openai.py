"""What tutorials of the official client show, in whichever major version runs this.

Runs in an environment of its own: ``python talk_openai.py READY_FILE``.
"""

import json
import sys
from pathlib import Path

import openai

ready = json.loads(Path(sys.argv[1]).read_bytes())
client = openai.OpenAI(
    base_url=ready["base_url"], api_key=ready["tenants"][0]["api_key"], max_retries=0
)
base, adapter = ready["tenants"][0]["models"][:2]
asked = {"messages": [{"role": "user", "content": "What is the capital of France?"}],
         "max_tokens": 24, "temperature": 0}  # fmt: skip

whole = client.chat.completions.create(model=base, **asked)
assert "Paris" in whole.choices[0].message.content, whole
chunks = list(
    client.chat.completions.create(
        model=base, stream=True, stream_options={"include_usage": True}, **asked
    )
)
streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
assert streamed == whole.choices[0].message.content, streamed
assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
raw = client.chat.completions.with_raw_response.create(model=adapter, **asked)
assert raw.headers["x-request-id"].startswith("req_")
assert raw.parse().model == adapter
text = client.completions.create(model=base, prompt=["1, 2, 3,", "a, b, c,"], max_tokens=4, n=2)
assert [choice.index for choice in text.choices] == [0, 1, 2, 3]
assert {model.id for model in client.models.list()} >= {base, adapter}
assert client.models.retrieve(adapter).id == adapter


def refused(kind, call, **fields):
    try:
        call(**fields)
    except kind as error:
        return error
    raise AssertionError(f"{fields} was answered")


chat = client.chat.completions.create
unknown = refused(openai.NotFoundError, chat, **{**asked, "model": "nobody"})
assert (unknown.code, unknown.param) == ("model_not_found", "model")
hot = refused(openai.BadRequestError, chat, model=base, **{**asked, "temperature": 3})
assert hot.param == "temperature"
stranger = openai.OpenAI(base_url=ready["base_url"], api_key="sk-nobody", max_retries=0)
assert refused(openai.AuthenticationError, stranger.models.list).code == "invalid_api_key"
sys.stdout.write(json.dumps({"openai": openai.__version__, "said": streamed}) + "\n")
