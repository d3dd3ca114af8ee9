import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.conftest import eventually
from tests.integration.conftest import Engine

CHAT = [{"role": "user", "content": "hi"}]
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def complete(engine: Engine, **body: Any) -> dict[str, Any]:
    with engine.client() as client:
        response = client.post("/v1/completions", json=GREEDY | body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def stream(engine: Engine, path: str, **body: Any) -> list[Any]:
    """The events of a streamed answer, decoded; the last one is the terminator."""
    with engine.client() as client, client.stream("POST", path, json=GREEDY | body | {"stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == response.status_code
    error: dict[str, Any] = body["error"]
    return error


def test_models_health_and_version(engine: Engine) -> None:
    with engine.client() as client:
        (model,) = client.get("/v1/models").json()["data"]
        assert (model["id"], model["object"], model["max_model_len"]) == ("dummy", "model", 8192)
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/version").json()["version"]


def test_a_completion(engine: Engine) -> None:
    answer = complete(engine, prompt="hello")
    (choice,) = answer["choices"]
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert (choice["finish_reason"], choice["index"]) == ("length", 0)
    usage = {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
    assert answer["usage"] == usage | {"prompt_tokens_details": {"cached_tokens": 0}}
    assert complete(engine, prompt="hello")["choices"] == answer["choices"]
    assert complete(engine, prompt=list(b"hello"))["choices"] == answer["choices"]


def test_a_chat_completion(engine: Engine) -> None:
    with engine.client() as client:
        body = GREEDY | {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
        answer = client.post("/v1/chat/completions", json=body).json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_a_stream_says_the_same_as_the_whole(engine: Engine) -> None:
    events = stream(engine, "/v1/completions", prompt="hello", stream_options={"include_usage": True})
    text = "".join(event["choices"][0]["text"] for event in events if event["choices"])
    assert text == complete(engine, prompt="hello")["choices"][0]["text"]
    assert events[-1]["usage"]["completion_tokens"] == 12
    assert [e["choices"][0]["finish_reason"] for e in events if e["choices"]][-1] == "length"


def test_a_chat_stream_opens_with_the_role(engine: Engine) -> None:
    events = stream(engine, "/v1/chat/completions", messages=[{"role": "user", "content": "hi"}])
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1


def test_a_seed_makes_sampling_repeatable(engine: Engine) -> None:
    first, second, other = (
        complete(engine, prompt="hello", temperature=1, seed=seed)["choices"][0]["text"] for seed in (1, 1, 2)
    )
    assert first == second != other


def test_many_at_once_are_not_mixed_up(engine: Engine) -> None:
    prompts = [f"prompt number {number}" for number in range(40)]
    alone = {prompt: complete(engine, prompt=prompt)["choices"][0]["text"] for prompt in prompts[:8]}
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda prompt: complete(engine, prompt=prompt), prompts))
    assert len({answer["id"] for answer in answers}) == len(prompts)
    together = {p: a["choices"][0]["text"] for p, a in zip(prompts, answers, strict=True)}
    assert {prompt: together[prompt] for prompt in alone} == alone


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("/v1/completions", {}, 400, "prompt: Field required"),
        ("/v1/completions", {"prompt": ""}, 400, "the prompt is empty"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": "x", "max_tokens": "many"}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": "x", "temperature": -1}, 400, "temperature"),
        ("/v1/completions", {"prompt": "x", "n": 9}, 400, "n: "),
        ("/v1/completions", {"prompt": "x", "logprobs": 6}, 400, "logprobs: "),
        ("/v1/completions", {"prompt": "x", "stop": ["a", "b", "c", "d", "e"]}, 400, "stop"),
        ("/v1/completions", {"prompt": "x", "stop": ""}, 400, "stop"),
        ("/v1/completions", {"prompt": "x", "best_of": 3}, 400, "best_of is not served"),
        ("/v1/chat/completions", {"messages": CHAT, "top_logprobs": 2}, 400, "top_logprobs needs logprobs"),
        ("/v1/chat/completions", {"messages": CHAT, "logprobs": 2}, 400, "logprobs: "),
        ("/v1/completions", {"prompt": [999]}, 400, "outside the vocabulary"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 9000}, 400, "limit is 8192 tokens"),
        ("/v1/completions", {"prompt": "x", "model": "gpt-5"}, 404, "serves 'dummy'"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "king", "content": "x"}]}, 400, "role"),
        ("/v1/nothing", {}, 404, "Not Found"),
    ],
)
def test_bad_requests(engine: Engine, path: str, body: dict[str, Any], status: int, sentence: str) -> None:
    with engine.client() as client:
        response = client.post(path, json=body)
    assert response.status_code == status
    assert sentence in error_of(response)["message"]


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe", b'{"prompt": ' + b"[" * 5000, b"null"])
def test_malformed_bodies_are_answered_and_counted(engine: Engine, raw: bytes) -> None:
    page = engine.page("api")
    before = page["requests_client_error"]
    with engine.client() as client:
        response = client.post("/v1/completions", content=raw, headers={"content-type": "application/json"})
        assert response.status_code == 400
        assert error_of(response)["type"] == "invalid_request_error"
        assert client.get("/v1/completions").status_code == 405
    eventually("the count", lambda: page["requests_client_error"] == before + 1)


def test_a_client_that_leaves_frees_its_place(engine: Engine) -> None:
    api, core = engine.page("api"), engine.page("core")
    before = api["requests_aborted"]
    left = api["client_disconnects"]
    with engine.client() as client:
        body = GREEDY | {"prompt": "hello", "max_tokens": 8000, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
            assert core["requests_running"] == 1
    eventually("the abort", lambda: api["requests_aborted"] == before + 1)
    assert api["client_disconnects"] == left + 1
    eventually("the cache to be free", lambda: (core["requests_running"], core["kv_blocks_used"]) == (0, 0))


def test_a_plain_client_that_leaves_is_noticed_too(engine: Engine) -> None:
    api, core = engine.page("api"), engine.page("core")
    before = api["requests_aborted"]
    left = api["client_disconnects"]
    with engine.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=GREEDY | {"prompt": "hello", "max_tokens": 8000}, timeout=0.3)
    eventually("the abort", lambda: api["requests_aborted"] == before + 1)
    assert api["client_disconnects"] == left + 1
    eventually("the cache to be free", lambda: core["kv_blocks_used"] == 0)


def test_counters_add_up_when_idle(engine: Engine) -> None:
    api, core = engine.page("api"), engine.page("core")
    threads = [threading.Thread(target=complete, args=(engine,), kwargs={"prompt": "x"}) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    eventually("rest", lambda: api["requests_inflight"] == 0)
    eventually("input", lambda: api["input_messages_sent"] == core["input_messages_decoded"])
    eventually("output", lambda: api["output_messages_received"] == core["output_messages_sent"])
    outcomes = ("ok", "client_error", "server_error", "aborted", "shed")
    assert api["requests_received"] == sum(api[f"requests_{outcome}"] for outcome in outcomes)
    assert api["output_last_sequence"] == core["output_messages_sent"]
    assert api["client_disconnects"] == api["requests_aborted"], "an answered client has not left"
