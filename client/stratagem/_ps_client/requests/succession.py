"""What programs ask servers of which one is to coordinate."""

from __future__ import annotations

from stratagem._ps_client.requests.request import Request, sole
from stratagem_proto.v1.succession_pb2 import (
    AwaitVacancyRequest,
    AwaitVacancyResponse,
    Incumbent,
    SucceedRequest,
    SucceedResponse,
)


def await_vacancy(program: bytes, wait: float) -> Request[AwaitVacancyResponse]:
    """Return the request that ends once a program can coordinate, or after `wait` seconds."""
    message = AwaitVacancyRequest(program=program, wait_seconds=wait)
    awaits = "the end of the program that coordinates" if wait else ""
    return Request("AwaitVacancy", message, sole(AwaitVacancyResponse), wait=wait, awaits=awaits)


def succeed(incumbent: Incumbent) -> Request[SucceedResponse]:
    """Return the request that gives a program the place, or gives the place up."""
    return Request("Succeed", SucceedRequest(incumbent=incumbent), sole(SucceedResponse))
