"""Which core a request goes to, over real sockets; the test is the cores."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from instrumented_engine import wire
from instrumented_engine.api.client import CoreClient, new_request_id
from instrumented_engine.api.errors import INTERNAL, ApiError, OverloadError
from instrumented_engine.api.stream import Stream
from instrumented_engine.api.timeline import Timeline
from instrumented_engine.config import EngineSettings
from instrumented_engine.endpoints import default
from telemetry.layout import API
from telemetry.scoreboard import Writer


def message(prompt: list[int]) -> wire.Submit:
    return wire.Submit(
        request_id=new_request_id(), prompt=wire.pack_tokens(prompt), max_tokens=1, temperature=0.0, top_p=1.0,
        top_k=0, seed=None, stop_token_ids=[], trace_id=bytes(16), span_id=bytes(8),
    )  # fmt: skip


class FarCore:
    """A core on another host, as far as the API process can tell: its page cannot be opened from here."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", settings: EngineSettings, index: int) -> None:
        self.index = index
        self.input, self.output = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        self.input.set_hwm(settings.high_water_mark)
        for socket, endpoint in zip((self.input, self.output), settings.endpoints_of(index), strict=True):
            socket.linger = 0
            socket.connect(endpoint)
        self._sequence = 0
        self.heard: list[wire.InputMessage] = []

    def say(self, said: wire.OutputMessage) -> None:
        self._sequence += 1
        self.output.send_multipart(wire.output_frames(wire.encode(said), self._sequence, 1))

    def ready(self, max_model_len: int = 100) -> None:
        self.say(wire.Ready(self.index, 1, "/nowhere", max_model_len))

    def count(self) -> int:
        """Messages heard so far."""
        with suppress(zmq.Again):
            while len(self.heard) < 10**6:
                self.heard.append(wire.decode_input(self.input.recv_multipart(zmq.NOBLOCK)))
        return len(self.heard)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


class Bench:
    def __init__(self, page: Writer, settings: EngineSettings) -> None:
        self.page = page
        self.client = CoreClient(settings, page)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.cores = [FarCore(self.context, settings, index) for index in range(settings.data_parallel_size)]

    async def all_ready(self) -> None:
        for core in self.cores:
            core.ready()
        await until(lambda: len(self.client.loads) == len(self.cores))

    def submit(self, *prompts: list[int]) -> tuple[int, list[Stream]]:
        """The core that got a request with these choices, and their streams."""
        timeline = Timeline(None, chat=False)
        streams = self.client.submit([message(prompt) for prompt in prompts], timeline)
        return timeline.core_index, streams

    def refusal(self, *prompts: list[int]) -> OverloadError | None:
        """Why a request with these choices is not taken, if it is not."""
        try:
            self.submit(*prompts)
        except OverloadError as refused:
            return refused
        return None


@asynccontextmanager
async def bench(directory: Path, cores: int, **settings: Any) -> AsyncIterator[Bench]:
    first = default(directory, 1, "", 1)
    page = Writer(directory, API)
    flags = settings | {"input_endpoint": first.input, "output_endpoint": first.output, "request_timeout": 0}
    made = Bench(page, EngineSettings(data_parallel_size=cores, **flags))
    made.client.start()
    try:
        yield made
    finally:
        made.client.close()
        made.context.destroy(linger=0)
        page.close()


def play(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 60))


def test_work_goes_where_there_is_least(runtime_dir: Path) -> None:
    async def scene() -> None:
        async with bench(runtime_dir, 3) as made:
            await made.all_ready()
            taken = [made.submit([number]) for number in range(30)]
            assert [sum(core == index for core, _ in taken) for index in range(3)] == [10, 10, 10]
            emptied = taken[7][0]
            for core, (stream,) in taken:
                if core == emptied:
                    stream.forget()
            assert [made.submit([number])[0] for number in range(10)] == [emptied] * 10

    play(scene())


def test_between_equals_the_beginning_of_the_prompt_decides(runtime_dir: Path) -> None:
    async def scene() -> None:
        async with bench(runtime_dir, 3) as made:
            await made.all_ready()
            chosen = {}
            for number in range(30):
                found = set()
                for end in range(3):
                    core, (stream,) = made.submit([number] * 64 + [end])
                    stream.forget()
                    found.add(core)
                (chosen[number],) = found
            assert set(chosen.values()) == {0, 1, 2}

    play(scene())


def test_the_choices_of_a_request_stay_together(runtime_dir: Path) -> None:
    async def scene() -> None:
        async with bench(runtime_dir, 2) as made:
            await made.all_ready()
            core, streams = made.submit([1], [1], [1])
            await until(lambda: made.cores[core].count() == 3)
            assert made.page[f"core_{core}_input_sent"] == 3
            streams[1].abort()
            await until(lambda: made.cores[core].count() == 4)
            assert made.cores[core].heard[3] == wire.Abort([streams[1].request_id])
            assert made.cores[1 - core].count() == 0

    play(scene())


def test_what_one_core_says_about_the_requests_of_another_is_left_alone(runtime_dir: Path) -> None:
    async def scene() -> None:
        async with bench(runtime_dir, 2) as made:
            await made.all_ready()
            core, (stream,) = made.submit([1])
            columns = (wire.pack_ids([stream.request_id]), wire.pack_tokens([7]))
            received = made.page["output_messages_received"]
            made.cores[1 - core].say(wire.Outputs(1 - core, *columns, []))
            await until(lambda: made.page["output_messages_received"] == received + 1)
            made.cores[core].say(wire.Outputs(core, *columns, []))
            assert await stream.take() == ([7], None)
            made.cores[0].say(wire.Outputs(2, *columns, []))
            made.cores[0].say(wire.Ready(7, 1, "/nowhere", 1))
            await until(lambda: made.page["output_messages_rejected"] == 2)
            assert [made.page[f"core_{index}_output_received"] for index in (core, 1 - core)] == [2, 2]

    play(scene())


def test_a_core_whose_socket_is_full_hands_on(runtime_dir: Path) -> None:
    async def scene() -> None:
        async with bench(runtime_dir, 2, high_water_mark=1, send_buffer_bytes=4096) as made:
            await made.all_ready()
            big = [1] * 2000  # a few of them fill the sockets of a core that does not read
            while (refused := made.refusal(big, big)) is None:
                assert made.page["input_messages_sent"] < 2000
            assert refused.reason == "input_full"
            assert min(made.page[f"core_{core}_input_sent"] for core in (0, 1)) > 0
            full, handed_over = (made.page[f"core_{core}_input_sent"] for core in (0, 1))
            await until(lambda: made.cores[1].count() >= handed_over)
            await until(lambda: made.refusal(big) is None)
            assert (made.page["core_0_input_sent"], made.page["core_1_input_sent"] > handed_over) == (full, True)

    play(scene())


def test_a_core_that_comes_again_has_lost_what_it_had(runtime_dir: Path) -> None:
    async def scene() -> None:
        async with bench(runtime_dir, 2) as made:
            await made.all_ready()
            taken = [made.submit([number]) for number in range(4)]
            made.cores[1].ready()
            lost = [stream for core, (stream,) in taken if core == 1]
            assert len(lost) == 2
            for stream in lost:
                with pytest.raises(ApiError, match="the core process died") as error:
                    await stream.take()
                assert error.value.error_class is INTERNAL
            assert [made.submit([number])[0] for number in range(2)] == [1, 1]
            assert made.page["core_1_input_sent"] == 2
            assert all(stream.forget() for core, (stream,) in taken if core == 0)

    play(scene())


def test_without_a_core_nothing_is_taken_and_with_one_all_of_it(runtime_dir: Path) -> None:
    async def scene() -> None:
        async with bench(runtime_dir, 2) as made:
            assert (made.client.serving, made.client.max_model_len) == (False, None)
            refused = made.refusal([1])
            assert refused is not None
            assert refused.reason == "no_core"
            made.cores[1].ready(max_model_len=50)
            await until(lambda: made.client.loads)
            assert [made.submit([number])[0] for number in range(3)] == [1, 1, 1]
            assert (made.client.serving, made.client.max_model_len, made.client.problems) == (True, 50, [])
            (complaint,) = made.client.complaints
            assert complaint.startswith("core-0: not running")
            made.cores[0].ready(max_model_len=70)
            await until(lambda: len(made.client.loads) == 2)
            assert made.client.max_model_len == 50
            assert not made.client.complaints

    play(scene())
