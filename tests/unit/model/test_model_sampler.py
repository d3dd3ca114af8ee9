"""The sampler keeps what a request asked for, whatever stands beside it."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from instrumented_engine.model.sampler import log_probabilities, make_generator, sample
from instrumented_engine.model.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0)


def logits_of(seed: int, rows: int = 1, vocab: int = 50) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def draw(logits: Tensor, params: SamplingParams, count: int) -> list[int]:
    """Draw ``count`` tokens of one row from one generator."""
    generator = make_generator(params)
    return [sample(logits, [params], [generator])[0] for _ in range(count)]


@pytest.mark.parametrize(
    "params",
    [GREEDY, SamplingParams(temperature=1e-40), SamplingParams(top_k=1), SamplingParams(top_p=1e-9, temperature=5)],
)
def test_forms_of_greedy(params: SamplingParams) -> None:
    logits = logits_of(1, rows=20)
    assert sample(logits, [params] * 20, [None] * 20) == logits.argmax(-1).tolist()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(0.1, 3),
    st.floats(0.05, 1),
    st.integers(0, 60),
)
def test_seeded_row_ignores_its_neighbours(seed: int, wish: int, temperature: float, top_p: float, top_k: int) -> None:
    params = SamplingParams(temperature, top_p, top_k, wish)
    logits = logits_of(seed, rows=3)
    alone = draw(logits[1:2], params, 6)
    generator = make_generator(params)
    others = [SamplingParams(), params, SamplingParams(0.5, top_k=7, seed=3)]
    crowded = [sample(logits, others, [None, generator, torch.Generator()])[1] for _ in range(6)]
    assert crowded == alone


@pytest.mark.parametrize(
    ("params", "greedy"), [(GREEDY, True), (SamplingParams(top_k=1), True), (SamplingParams(0.1, 0.1, 2), False)]
)
def test_greedy_is_told_beforehand(params: SamplingParams, greedy: bool) -> None:
    assert params.greedy is greedy


def test_impossible_token_is_not_drawn_by_a_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda count, **_: torch.zeros(count))
    assert sample(torch.tensor([[-1e4, 0.0, 0.0]]), [SamplingParams()], [None]) == [1]


def test_seeds_differ() -> None:
    logits = torch.zeros(1, 50)
    assert draw(logits, SamplingParams(seed=1), 20) != draw(logits, SamplingParams(seed=2), 20)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 49))
def test_top_k_stays_in_top_k(seed: int, top_k: int) -> None:
    logits = logits_of(seed)
    allowed = set(logits[0].topk(top_k).indices.tolist())
    assert set(draw(logits, SamplingParams(temperature=3, top_k=top_k, seed=seed), 30)) <= allowed


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.05, 0.999))
def test_top_p_keeps_the_fewest_that_reach_it(seed: int, top_p: float) -> None:
    logits = logits_of(seed, vocab=12)
    shares = sorted(enumerate(logits[0].double().softmax(-1).tolist()), key=lambda pair: -pair[1])
    nucleus, mass = set(), 0.0
    for token, share in shares:
        nucleus.add(token)
        mass += share
        if mass >= top_p - 1e-6:
            break
    # Enough draws to find a token outside if one were kept; that all inside can be drawn is the next test.
    assert set(draw(logits, SamplingParams(top_p=top_p, seed=seed), 60)) <= nucleus | _at_the_edge(shares, top_p)


def _at_the_edge(shares: list[tuple[int, float]], top_p: float) -> set[int]:
    """The token that rounding may let in: the one after the sum comes within 1e-6 of ``top_p``."""
    mass = 0.0
    for token, share in shares:
        if abs(mass - top_p) < 1e-6:
            return {token}
        mass += share
    return set()


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(seed=1), [0.5, 0.25, 0.15, 0.1]),
        (SamplingParams(temperature=0.5, seed=2), [0.25, 0.0625, 0.0225, 0.01]),
        (SamplingParams(top_k=3, seed=3), [0.5, 0.25, 0.15, 0]),
        (SamplingParams(top_p=0.7, seed=4), [0.5, 0.25, 0, 0]),
        # After top_k=2 the likeliest token alone holds two thirds.
        (SamplingParams(top_k=2, top_p=0.6, seed=5), [0.5, 0, 0, 0]),
    ],
)
def test_frequencies(params: SamplingParams, expected: list[float]) -> None:
    count = 4000
    order = [2, 0, 3, 1]
    logits = torch.empty(1, 4)
    logits[0, order] = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
    drawn = Counter(draw(logits, params, count))
    for token, weight in zip(order, expected, strict=True):
        share = weight / sum(expected)
        # Five standard deviations: the seeds are fixed, so this passes always or never.
        assert abs(drawn[token] / count - share) <= 5 * math.sqrt(share * (1 - share) / count)


@pytest.mark.parametrize("rows", [0, 3])
def test_one_id_per_row(rows: int) -> None:
    ids = sample(logits_of(1, rows=rows), [SamplingParams()] * rows, [None] * rows)
    assert len(ids) == rows
    assert all(0 <= token < 50 for token in ids)


def test_lengths_must_match() -> None:
    with pytest.raises(ValueError, match="2 rows, 1 parameters and 2 generators"):
        sample(logits_of(1, rows=2), [GREEDY], [None, None])


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"temperature": -0.1}, "temperature must be 0 or a positive number, not -0.1"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, not 0.0"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"top_k": -1}, "top_k must be 0"),
        ({"seed": 2**63}, "seed must fit"),
    ],
)
def test_wishes_out_of_range(wish: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SamplingParams(**wish)  # type: ignore[arg-type]


@given(st.integers(0, 2**31), st.integers(0, 5), st.integers(1, 4))
def test_log_probabilities_are_those_of_the_model(seed: int, width: int, rows: int) -> None:
    logits = logits_of(seed, rows)
    tokens = [(seed + row) % 50 for row in range(rows)]
    chosen, ids, top = log_probabilities(logits, tokens, width)
    expected = (logits.double().exp() / logits.double().exp().sum(1, keepdim=True)).log().float()
    torch.testing.assert_close(chosen, expected[range(rows), tokens], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(top, expected.gather(1, ids), rtol=1e-4, atol=1e-5)
    assert ids.tolist() == expected.sort(descending=True).indices[:, :width].tolist()
