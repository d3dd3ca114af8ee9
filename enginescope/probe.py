"""Small HTTP questions to the processes of a stack, bounded in time."""

from __future__ import annotations

import http.client
import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class ProbeError(Exception):
    """No answer, or not a good one; the message is one sentence."""


def get(port: int, path: str, host: str = "127.0.0.1", timeout: float = 2.0) -> bytes:
    """The body of a 200 answer.

    Raises:
        ProbeError: anything else.
    """
    return _request("GET", host, port, path, None, timeout)


def post(port: int, path: str, body: Any, host: str = "127.0.0.1", timeout: float = 5.0) -> Any:
    """The JSON answer to a JSON body.

    Raises:
        ProbeError: no 200 answer.
    """
    return json.loads(_request("POST", host, port, path, json.dumps(body), timeout))


def _request(method: str, host: str, port: int, path: str, body: str | None, timeout: float) -> bytes:
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        answer = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ProbeError(f"{host}:{port}{path} does not answer: {error}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise ProbeError(f"{host}:{port}{path} answered {response.status}")
    return answer


def is_ready(port: int, path: str) -> bool:
    """Whether a GET is answered with 200 within a second."""
    try:
        get(port, path, timeout=1.0)
    except ProbeError:
        return False
    return True


def samples(port: int) -> Samples:
    """All samples of a /metrics page by name and labels.

    Raises:
        ProbeError: it cannot be read.
    """
    text = get(port, "/metrics").decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(found: Samples, name: str, **labels: str) -> float | None:
    """Sum of the samples of one name with these labels; None when there is none."""
    wanted = set(labels.items())
    values = [value for (sample, have), value in found.items() if sample == name and wanted <= have]
    return sum(values) if values else None


def query(port: int, expression: str) -> float | None:
    """Value of an instant query at a Prometheus; None when the result is empty.

    Raises:
        ProbeError: Prometheus does not answer.
    """
    answer = json.loads(get(port, f"/api/v1/query?query={expression}"))
    result = answer["data"]["result"]
    return float(result[0]["value"][1]) if result else None
