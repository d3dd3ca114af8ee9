"""The official client library gets what it expects, errors as its own classes included."""

from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from tests.conftest import eventually
from tests.integration.conftest import Engine

HI: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hi"}]
FOREVER = {"ignore_eos": True}


@pytest.fixture
def client(engine: Engine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0, timeout=60) as opened:
        yield opened


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["dummy"]


def test_a_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="dummy", prompt="hello", max_tokens=6, temperature=0, n=2, logprobs=2, extra_body=FOREVER
    )
    first, second = answer.choices
    assert (first.text, first.finish_reason) == (second.text, "length")
    assert first.logprobs is not None
    assert first.logprobs.tokens is not None
    assert len(first.logprobs.tokens) == 6
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 12)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_a_chat_completion(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="dummy",
        messages=HI,
        max_completion_tokens=6,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
        extra_body=FOREVER,
    )
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [len(token.top_logprobs) for token in choice.logprobs.content] == [3] * 6


def test_streams(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="dummy", messages=HI, max_tokens=9, temperature=0, extra_body=FOREVER)
    chunks = list(
        client.chat.completions.create(
            model="dummy",
            messages=HI,
            max_tokens=9,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=FOREVER,
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 9
    pieces = client.completions.create(
        model="dummy", prompt="hello", max_tokens=9, temperature=0, stream=True, extra_body=FOREVER
    )
    assert [piece.choices[0].finish_reason for piece in pieces][-1] == "length"


def test_a_stop_string(client: openai.OpenAI) -> None:
    ask = {"model": "dummy", "prompt": "hello", "temperature": 0}
    whole = client.completions.create(**ask, max_tokens=40, extra_body=FOREVER).choices[0].text  # type: ignore[call-overload]
    stop = whole[10:12]
    cut = client.completions.create(**ask, max_tokens=40, stop=[stop], extra_body=FOREVER).choices[0]  # type: ignore[call-overload]
    assert (cut.text, cut.finish_reason) == (whole[: whole.index(stop)], "stop")


def test_errors_are_the_clients_own_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="limit is 8192 tokens") as bad:
        client.completions.create(model="dummy", prompt="x", max_tokens=9000)
    assert (bad.value.param, bad.value.type, bad.value.status_code) == ("max_tokens", "invalid_request_error", 400)
    with pytest.raises(openai.NotFoundError, match="serves 'dummy'"):
        client.chat.completions.create(model="gpt-5", messages=HI)
    with pytest.raises(openai.BadRequestError, match="tools is not served"):
        client.chat.completions.create(
            model="dummy", messages=HI, tools=[{"type": "function", "function": {"name": "f"}}]
        )


def test_closing_the_stream_aborts(client: openai.OpenAI, engine: Engine) -> None:
    api, core = engine.page("api"), engine.page("core")
    before = api["requests_aborted"]
    stream = client.completions.create(model="dummy", prompt="hello", max_tokens=8000, stream=True, extra_body=FOREVER)
    assert next(iter(stream)).choices
    eventually("the sequence", lambda: core["requests_running"] == 1)
    stream.close()
    eventually("the abort", lambda: api["requests_aborted"] == before + 1)
    eventually("the cache to be free", lambda: (core["requests_running"], core["kv_blocks_used"]) == (0, 0))
