"""The completions endpoint: prompts of every kind, echo, and its own logprobs."""

from tests.gateway.serving import BASE, ask, post, serving
from tests.gateway.test_streaming import frames

PATH = "/v1/completions"


def asked(**fields):
    return post({"model": BASE, "prompt": "Hello", **fields}, path=PATH)


async def test_a_completion_is_answered_in_openais_shape(tmp_path):
    async with serving(tmp_path) as server:
        server.say(", world!")
        got = await ask(server.port, asked(max_tokens=50))
        answer = got.json
        assert (answer["object"], answer["id"][:5]) == ("text_completion", "cmpl-")
        assert answer["choices"] == [
            {"index": 0, "text": ", world!", "logprobs": None, "finish_reason": "stop"}
        ]
        assert server.last.tokens == server.tokenizer.encode("Hello", add_special=True)


async def test_several_prompts_number_their_choices_in_order(tmp_path):
    async with serving(tmp_path) as server:
        got = await ask(server.port, asked(prompt=["abc", "Hello", "dog"], n=2, max_tokens=1))
        choices = got.json["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2, 3, 4, 5]
        firsts = [server.tokenizer.text_of(server.tokenizer.encode(p, add_special=True)[0])
                  for p in ("abc", "Hello", "dog")]  # fmt: skip
        assert [choice["text"] for choice in choices] == [t for t in firsts for _ in range(2)]
        assert got.json["usage"]["completion_tokens"] == 6
        assert got.json["usage"]["prompt_tokens"] == sum(
            len(submit.tokens) for submit in server.engine.submitted
        )
        assert len({submit.request for submit in server.engine.submitted}) == 3
        assert len(server.recorder.ended) == 1


async def test_more_prompts_than_run_together_all_get_their_answer(tmp_path):
    async with serving(tmp_path) as server:
        got = await ask(server.port, asked(prompt=["dog"] * 100, max_tokens=2))
        assert len(got.json["choices"]) == 100
        assert all(choice["finish_reason"] == "length" for choice in got.json["choices"])


async def test_token_ids_are_taken_as_they_are(tmp_path):
    async with serving(tmp_path) as server:
        await ask(server.port, asked(prompt=[5, 6, 7]))
        assert server.last.tokens == [5, 6, 7]
        refused = await ask(server.port, asked(prompt=[5, 10**6]))
        assert (refused.status, refused.error["param"]) == (400, "prompt[1]")


async def test_echo_repeats_the_prompt_before_the_answer(tmp_path):
    async with serving(tmp_path) as server:
        server.say(" there")
        got = await ask(server.port, asked(echo=True, max_tokens=50))
        assert got.json["choices"][0]["text"] == "Hello there"


async def test_echo_alone_bills_no_completion(tmp_path):
    async with serving(tmp_path) as server:
        got = await ask(server.port, asked(echo=True, max_tokens=0, logprobs=1))
        assert got.json["choices"][0]["text"] == "Hello"
        assert got.json["usage"]["completion_tokens"] == 0
        logprobs = got.json["choices"][0]["logprobs"]
        assert "".join(logprobs["tokens"]) == "Hello"
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["text_offset"][0] == 0


async def test_logprobs_have_texts_offsets_and_alternatives(tmp_path):
    async with serving(tmp_path) as server:
        server.say("ab cd")
        got = await ask(server.port, asked(logprobs=2, echo=True, max_tokens=50))
        choice = got.json["choices"][0]
        logprobs = choice["logprobs"]
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            assert choice["text"][offset : offset + len(token)] == token
        assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"])
        assert all(len(top) >= 1 for top in logprobs["top_logprobs"] if top is not None)


async def test_an_empty_prompt_is_refused(tmp_path):
    async with serving(tmp_path) as server:
        got = await ask(server.port, asked(prompt=""))
        assert (got.status, got.error["param"]) == (400, "prompt")


async def test_one_failing_prompt_fails_the_request_and_leaves_nothing_running(tmp_path):
    async with serving(tmp_path) as server:
        server.engine.knobs.fail_after = 1
        got = await ask(server.port, asked(prompt=["a", "b", "c"]))
        assert (got.status, got.error["code"]) == (500, "engine_failed")
        assert server.engine.open == 0
        assert len(server.recorder.ended) == 1


async def test_the_best_of_several_are_the_answer_and_all_are_billed(tmp_path):
    async with serving(tmp_path) as server:
        texts = ["abc", "Hello", "dog", "fox"]
        chances = {"abc": -3.0, "Hello": -0.5, "dog": -2.0, "fox": -0.25}
        tokens = [server.tokenizer.encode(text, add_special=False) for text in texts]
        server.engine.knobs.choices = tokens
        server.engine.knobs.logprob = lambda index, token: chances[texts[index]]
        got = await ask(server.port, asked(n=2, best_of=4, max_tokens=50))
        choices = got.json["choices"]
        assert [(c["index"], c["text"]) for c in choices] == [(0, "fox"), (1, "Hello")]
        assert all(choice["logprobs"] is None for choice in choices)
        assert got.json["usage"]["completion_tokens"] == sum(len(t) + 1 for t in tokens)
        assert (server.last.n, server.last.logprobs) == (4, 0)


async def test_a_service_tier_is_a_priority_and_the_answer_names_it(tmp_path):
    async with serving(tmp_path) as server:
        got = await ask(server.port, asked(service_tier="flex"))
        assert (got.json["service_tier"], server.last.priority) == ("flex", -1)
        got = await ask(server.port, asked(service_tier="priority"))
        assert (got.json["service_tier"], server.last.priority) == ("default", 0)
        assert "service_tier" not in (await ask(server.port, asked())).json


async def test_priority_goes_first_where_the_operator_lets_it(tmp_path):
    async with serving(tmp_path, priority_tier=True) as server:
        got = await ask(server.port, asked(service_tier="priority"))
        assert (got.json["service_tier"], server.last.priority) == ("priority", 1)


async def test_only_the_end_of_a_prompt_is_kept_where_that_is_asked_for(tmp_path):
    async with serving(tmp_path, context=32) as server:
        prompt = list(range(5, 45))
        got = await ask(server.port, asked(prompt=prompt, truncate_prompt_tokens=3, echo=True))
        assert server.last.tokens == prompt[-3:]
        assert got.json["usage"]["prompt_tokens"] == 3
        await ask(server.port, asked(prompt=prompt, truncate_prompt_tokens=-1, max_tokens=4))
        assert server.last.tokens == prompt[-28:]


async def test_control_tokens_show_where_that_is_asked_for(tmp_path):
    async with serving(tmp_path) as server:
        server.script(lambda _: [1, *server.tokenizer.encode("user", add_special=False), 2])
        hidden = await ask(server.port, asked(max_tokens=20))
        assert hidden.json["choices"][0]["text"] == "user"
        shown = await ask(server.port, asked(max_tokens=20, skip_special_tokens=False))
        assert shown.json["choices"][0]["text"] == "<|im_start|>user"
        stop = {"skip_special_tokens": False, "include_stop_str_in_output": True}
        ended = await ask(server.port, asked(max_tokens=20, **stop))
        assert ended.json["choices"][0]["text"] == "<|im_start|>user<|im_end|>"


async def test_tokens_may_be_named_by_number(tmp_path):
    async with serving(tmp_path) as server:
        server.script(lambda _: [7, 8])
        got = await ask(server.port, asked(logprobs=2, return_tokens_as_token_ids=True))
        logprobs = got.json["choices"][0]["logprobs"]
        assert logprobs["tokens"] == ["token_id:7", "token_id:8"]
        assert set(logprobs["top_logprobs"][0]) == {"token_id:7", "token_id:8"}


async def test_the_tokens_themselves_are_told_where_that_is_asked_for(tmp_path):
    """As many as are billed, the one that ends the answer included; whole and streamed alike."""
    async with serving(tmp_path) as server:
        spelled = server.tokenizer.encode("Hello 🙂 there", add_special=False)
        server.script(lambda _: [*spelled, 2])
        wanted = {"return_token_ids": True, "max_tokens": 60}
        got = (await ask(server.port, asked(prompt=["dog", "fox"], **wanted))).json
        prompts = [submit.tokens for submit in server.engine.submitted]
        assert [c["token_ids"] for c in got["choices"]] == [[*spelled, 2]] * 2
        assert sorted(c["prompt_token_ids"] for c in got["choices"]) == sorted(prompts)
        assert got["usage"]["completion_tokens"] == 2 * (len(spelled) + 1)
        cut = (await ask(server.port, asked(stop=" there", **wanted))).json
        assert len(cut["choices"][0]["token_ids"]) == cut["usage"]["completion_tokens"]

        streamed = frames((await ask(server.port, asked(stream=True, **wanted))).body)
        choices = [chunk["choices"][0] for chunk in streamed]
        assert [t for c in choices for t in c.get("token_ids", ())] == [*spelled, 2]
        assert [bool(c.get("prompt_token_ids")) for c in choices] == [
            True, *[False] * (len(choices) - 1)
        ]  # fmt: skip


async def test_the_tokens_of_a_chat_are_told_too(tmp_path):
    async with serving(tmp_path) as server:
        server.script(lambda _: [7, 8, 2])
        chat = {"model": BASE, "messages": [{"role": "user", "content": "Hello"}],
                "return_token_ids": True}  # fmt: skip
        got = (await ask(server.port, post(chat))).json
        assert got["prompt_token_ids"] == server.last.tokens
        assert got["choices"][0]["token_ids"] == [7, 8, 2]
        first, *rest = frames((await ask(server.port, post({**chat, "stream": True}))).body)
        assert first["prompt_token_ids"] == server.last.tokens
        told = [t for chunk in rest for t in chunk["choices"][0].get("token_ids", ())]
        assert told == [7, 8, 2]
