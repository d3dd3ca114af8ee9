"""What the engine serves beyond plain completions: stop strings, log probabilities, choices, the prefix cache."""

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from instrumented_engine.wire import ZERO_COPY_BYTES
from telemetry.records import RequestRecord
from telemetry.stages import Stamp
from tests.conftest import eventually
from tests.integration.conftest import Engine, running_engine
from tests.integration.test_engine_api import CHAT, GREEDY, complete, stream
from tests.unit.model.hf_checkpoint import edit_config, save_checkpoint


def chat(engine: Engine, **body: Any) -> dict[str, Any]:
    with engine.client() as client:
        response = client.post("/v1/chat/completions", json=GREEDY | {"messages": CHAT} | body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def text_of(answer: dict[str, Any]) -> str:
    (choice,) = answer["choices"]
    text: str = choice["text"]
    return text


def wait_for_rest(engine: Engine) -> None:
    api, core = engine.page("api"), engine.page("core")
    eventually(
        "rest", lambda: (api["requests_inflight"], core["requests_running"], core["kv_blocks_used"]) == (0, 0, 0)
    )


def test_a_stop_string_ends_the_answer_and_the_work(engine: Engine) -> None:
    whole = text_of(complete(engine, prompt="stop here", max_tokens=200))
    stop = whole[40:43]  # over several tokens: each is one byte
    cut = whole[: whole.index(stop)]
    core = engine.page("core")
    wait_for_rest(engine)
    steps = core["steps"]
    answer = complete(engine, prompt="stop here", max_tokens=8000, stop=[stop, "not in the text"])
    assert (text_of(answer), answer["choices"][0]["finish_reason"]) == (cut, "stop")
    wait_for_rest(engine)
    assert core["steps"] - steps < 2000
    assert answer["usage"]["completion_tokens"] < 200


def test_a_stop_string_is_never_streamed(engine: Engine) -> None:
    whole = text_of(complete(engine, prompt="stop here", max_tokens=200))
    stop = whole[40:43]
    events = stream(engine, "/v1/completions", prompt="stop here", max_tokens=200, stop=stop)
    texts = [event["choices"][0]["text"] for event in events]
    assert "".join(texts) == whole[: whole.index(stop)]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stopped_request_has_all_its_stamps(engine: Engine) -> None:
    whole = text_of(complete(engine, prompt="stamps"))
    request_id = complete(engine, prompt="stamps", max_tokens=8000, stop=whole[5:7])["id"]
    record = eventually("the record", lambda: record_of(engine, request_id))
    assert all(record.stamps[moment] for moment in Stamp)
    assert record.status == 200


def record_of(engine: Engine, request_id: str) -> RequestRecord | None:
    records = [RequestRecord.unpack(payload) for payload in engine.page("api").ring().drain()]
    return next((record for record in records if record.request_id == request_id), None)


def test_completion_logprobs(engine: Engine) -> None:
    answer = complete(engine, prompt="hello", logprobs=3)
    logprobs = answer["choices"][0]["logprobs"]
    assert {len(column) for column in logprobs.values()} == {12}
    assert all(len(top) == 3 for top in logprobs["top_logprobs"])
    for token, logprob, top in zip(*(logprobs[k] for k in ("tokens", "token_logprobs", "top_logprobs")), strict=True):
        assert top[token] == max(top.values()) == logprob < 0  # greedy: the likeliest was taken
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
    assert text_of(complete(engine, prompt="hello")) == text_of(answer)
    assert complete(engine, prompt="hello")["choices"][0]["logprobs"] is None
    assert complete(engine, prompt="hello", logprobs=0)["choices"][0]["logprobs"]["top_logprobs"] == [{}] * 12


def test_chat_logprobs_are_the_same_streamed(engine: Engine) -> None:
    whole = chat(engine, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert len(whole) == 12
    assert all(item["top_logprobs"][0]["bytes"] == item["bytes"] for item in whole)
    events = stream(engine, "/v1/chat/completions", messages=CHAT, logprobs=True, top_logprobs=2)
    streamed = [item for event in events[1:] for item in event["choices"][0]["logprobs"]["content"]]
    assert streamed == whole


def test_logprobs_are_cut_with_the_text(engine: Engine) -> None:
    whole = complete(engine, prompt="hello", max_tokens=60, logprobs=1)
    text = text_of(whole)
    stop = text[20:22]
    cut = complete(engine, prompt="hello", max_tokens=60, logprobs=1, stop=stop)["choices"][0]
    offsets = [o for o in whole["choices"][0]["logprobs"]["text_offset"] if o < text.index(stop)]
    assert cut["logprobs"]["text_offset"] == offsets


def test_those_who_ask_for_logprobs_do_not_change_the_others(engine: Engine) -> None:
    prompts = {f"p{number}": number % 6 for number in range(12)}
    alone = {p: complete(engine, prompt=p, logprobs=k)["choices"][0] for p, k in prompts.items()}
    body = {"n": 3, "logprobs": 5}
    together = {p: complete(engine, prompt=p, **body)["choices"] for p in prompts}
    for prompt, choices in together.items():
        assert {choice["text"] for choice in choices} == {alone[prompt]["text"]}


def test_several_choices(engine: Engine) -> None:
    wait_for_rest(engine)
    received = engine.page("api")["requests_received"]
    prompt = "a prompt of more than sixteen bytes, shared by all choices"
    answer = complete(engine, prompt=prompt, n=8, temperature=1, seed=5)
    assert [choice["index"] for choice in answer["choices"]] == list(range(8))
    assert len({choice["text"] for choice in answer["choices"]}) == 8
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["usage"]["completion_tokens"] == 8 * 12
    assert engine.page("api")["requests_received"] == received + 1
    assert text_of(complete(engine, prompt=prompt, temperature=1, seed=5)) == answer["choices"][0]["text"]
    again = complete(engine, prompt=prompt, n=8, temperature=1, seed=5)
    assert again["choices"] == answer["choices"]


def test_choices_share_the_prompt_and_are_one_record(engine: Engine) -> None:
    core = engine.page("core")
    wait_for_rest(engine)
    hits = core["prefix_cache_hit_tokens"]
    prompt = "b" * 161
    answer = complete(engine, prompt=prompt, n=4)
    wait_for_rest(engine)
    assert core["prefix_cache_hit_tokens"] - hits == 3 * 160
    record = eventually("the record", lambda: record_of(engine, answer["id"]))
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (161, 48, 0)
    assert record.stamps[Stamp.FIRST_SAMPLED] <= record.stamps[Stamp.LAST_SAMPLED]
    assert record.clamped == 0


@pytest.mark.parametrize(("path", "kind"), [("/v1/completions", "text"), ("/v1/chat/completions", "delta")])
def test_several_choices_streamed(engine: Engine, path: str, kind: str) -> None:
    prompt = {"prompt": "xyz"} if kind == "text" else {"messages": CHAT}
    body = prompt | {"n": 3, "temperature": 1, "seed": 9, "stream_options": {"include_usage": True}}
    events = stream(engine, path, **body)
    chunks = sorted((e["choices"][0] for e in events if e["choices"]), key=lambda chunk: chunk["index"])
    by_choice = {index: list(own) for index, own in groupby(chunks, key=lambda chunk: chunk["index"])}
    with engine.client() as client:
        plain = client.post(path, json=GREEDY | body | {"stream_options": None}).json()
    for choice in plain["choices"]:
        own = by_choice.pop(choice["index"])
        texts = [chunk["text"] if kind == "text" else chunk["delta"]["content"] for chunk in own]
        assert "".join(texts) == (choice["text"] if kind == "text" else choice["message"]["content"])
        assert [chunk["finish_reason"] for chunk in own if chunk["finish_reason"]] == ["length"]
    assert by_choice == {}
    assert events[-1]["usage"]["completion_tokens"] == 36


def test_a_client_that_leaves_ends_all_its_choices(engine: Engine) -> None:
    api, core = engine.page("api"), engine.page("core")
    before = api["requests_aborted"]
    with engine.client() as client:
        body = GREEDY | {"prompt": "hello", "max_tokens": 8000, "stream": True, "n": 4}
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()  # held: dropping it would close the connection
            assert "error" not in next(lines)
            eventually("the choices", lambda: core["requests_running"] == 4)
    eventually("the abort", lambda: api["requests_aborted"] == before + 1)
    wait_for_rest(engine)


def test_a_repeated_prompt_is_cached_and_answered_alike(engine: Engine) -> None:
    prompt = "c" * 100
    first, second = complete(engine, prompt=prompt), complete(engine, prompt=prompt)
    assert [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (first, second)] == [0, 96]
    assert text_of(first) == text_of(second)
    events = stream(engine, "/v1/completions", prompt=prompt, stream_options={"include_usage": True})
    assert events[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 96}


def test_the_prefix_cache_can_be_turned_off(tmp_path: Path, runtime_dir: Path) -> None:
    with running_engine(runtime_dir, "--no-prefix-cache") as engine:
        answers = [complete(engine, prompt="d" * 100) for _ in range(2)]
        assert [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers] == [0, 0]
        assert engine.page("core")["prefix_cache_hit_tokens"] == 0


@pytest.mark.long
def test_a_message_that_is_shared_with_libzmq_crosses_like_any_other(runtime_dir: Path, tmp_path: Path) -> None:
    """That nothing copies it is shown by its address, in the tests of the wire; here it goes between processes."""
    save_checkpoint(tmp_path)
    edit_config(tmp_path, max_position_embeddings=20_000)
    flags = (f"--model={tmp_path}", "--max-num-batched-tokens=20000", "--kv-blocks=1300", "--threads=1")
    prompt = [token % 256 for token in range(17_000)]
    with running_engine(runtime_dir, *flags) as engine:
        api, core = engine.page("api"), engine.page("core")
        assert complete(engine, prompt=prompt, max_tokens=4)["usage"]["prompt_tokens"] == len(prompt)
        assert (api["input_messages_sent"], core["input_messages_decoded"]) == (1, 1)
        assert api["input_bytes_sent"] > 4 * len(prompt) > ZERO_COPY_BYTES
        assert core["input_bytes_received"] > api["input_bytes_sent"]
