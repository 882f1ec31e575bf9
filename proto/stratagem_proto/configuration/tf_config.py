"""The environment variable `TF_CONFIG`, read and checked in this one place."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from stratagem_proto.errors import InvalidArgumentError, StratagemError


def describe_problem(path: str, problem: Any) -> str:
    """Return a message that says what is wrong with a value.

    Args:
        path: The source of the value, for instance "TF_CONFIG.task.index".
        problem: One of the errors of a `ValidationError`.
    """
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, StratagemError):
        return f"{path}: {cause.message}"
    reason = problem["msg"][:1].lower() + problem["msg"][1:]
    return f"{path} is {problem['input']!r}: {reason}"


TF_CONFIG_VARIABLE = "TF_CONFIG"


def _numbered(tasks: Any) -> Any:
    if isinstance(tasks, str):
        raise PydanticCustomError("tasks", "write a list of addresses, one for each task")
    return dict(enumerate(tasks)) if isinstance(tasks, list) else tasks


class TaskConfig(BaseModel):
    """The task of this process. Spec: RES-8."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    type: str | None = None
    index: int | None = None


class TFConfig(BaseModel):
    """The content of `TF_CONFIG`; keys that are not listed here are ignored.

    Attributes:
        cluster: The addresses by job and task index.
        task: The task of this process.
        rpc_layer: The protocol in front of addresses, for instance "grpc".
        environment: Free text about where the cluster runs.
        session_master: The address that `master()` returns for every task.
    """

    cluster: dict[str, Annotated[dict[int, str], BeforeValidator(_numbered)]] = {}
    task: TaskConfig = TaskConfig()
    rpc_layer: str | None = None
    environment: str | None = None
    session_master: str | None = None


def read_tf_config() -> TFConfig:
    """Return the `TF_CONFIG` of the environment; everything is empty if it is not set.

    Raises:
        InvalidArgumentError: As for `parse_tf_config`.

    Spec: RES-7, RES-8, RES-11.
    """
    return parse_tf_config(os.environ.get(TF_CONFIG_VARIABLE) or "{}")


def parse_tf_config(
    text: str, name: str = f"environment variable {TF_CONFIG_VARIABLE}"
) -> TFConfig:
    """Parse a text in the form of `TF_CONFIG`.

    Args:
        text: The JSON text.
        name: The source of the text, for messages.

    Raises:
        InvalidArgumentError: It is not JSON, or an entry has the wrong type; the message names the
            entry by its path, as in `TF_CONFIG.task.index`.
    """
    try:
        describe_problem = json.loads(text)
    # Numbers of thousands of digits and lists in a thousand lists are JSON, too.
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{name} is not JSON: {error}. It reads {text!r}") from error
    try:
        return TFConfig.model_validate(describe_problem)
    except ValidationError as error:
        problems = "; ".join(_problem(problem) for problem in error.errors())
        raise InvalidArgumentError(problems) from error


def _problem(problem: Any) -> str:
    path = ".".join([TF_CONFIG_VARIABLE, *(str(p) for p in problem["loc"] if p != "[key]")])
    return describe_problem(path, problem)
