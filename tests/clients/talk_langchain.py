"""What LangChain's users do: invoke, stream, batch, async, and completions.

Runs in an environment of its own: ``python talk_langchain.py READY_FILE``.
"""

import asyncio
import json
import sys
from importlib.metadata import version
from pathlib import Path

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

ready = json.loads(Path(sys.argv[1]).read_bytes())
base, adapter = ready["tenants"][0]["models"][:2]
access = {"base_url": ready["base_url"], "api_key": ready["tenants"][0]["api_key"],
          "max_retries": 0, "temperature": 0}  # fmt: skip
chat = ChatOpenAI(model=base, max_tokens=24, **access)
question = "What is the capital of France?"

whole = chat.invoke(question)
assert "Paris" in whole.content, whole
assert whole.usage_metadata["output_tokens"] > 0
assert whole.response_metadata["finish_reason"] in ("stop", "length")
chunks = list(chat.stream(question, stream_usage=True))
assert "".join(chunk.content for chunk in chunks) == whole.content
assert (
    sum((c.usage_metadata or {}).get("output_tokens", 0) for c in chunks)
    == (whole.usage_metadata["output_tokens"])
)
history = [SystemMessage("Answer in one word."), HumanMessage("Hello"), AIMessage("Hello!"),
           HumanMessage(question)]  # fmt: skip
assert chat.invoke(history, stop=["\n"]).content
assert [bool(one.content) for one in chat.batch(["One?", "Two?"])] == [True, True]
assert asyncio.run(chat.ainvoke(question)).content == whole.content
tuned = ChatOpenAI(model=adapter, max_tokens=24, **access).invoke(question)
assert tuned.content != whole.content
measured = chat.bind(logprobs=True, top_logprobs=2).invoke(question)
assert len(measured.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2
text = OpenAI(model=base, max_tokens=4, **access).invoke("1, 2, 3, 4, 5, 6,")
assert "7" in text, text
sys.stdout.write(
    json.dumps({"langchain-openai": version("langchain-openai"), "said": whole.content}) + "\n"
)
