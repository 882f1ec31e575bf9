"""Running update programs on a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple, cast

import torch

from stratagem._ps_client.requests.request import Request, sole
from stratagem._ps_client.requests.variables import Attachments
from stratagem._ps_client.transport import Responses
from stratagem_proto.programs.gradient_limits import GradientLimits
from stratagem_proto.programs.graph_program import decode_output
from stratagem_proto.programs.update_programs import encode_limits
from stratagem_proto.v1.closed_step_pb2 import (
    ClosedStep,
    FinishStepRequest,
    FinishStepResponse,
    GlobalNorm,
    ListClosedStepsRequest,
    ListClosedStepsResponse,
)
from stratagem_proto.v1.parameter_server_pb2 import (
    CommitContributionRequest,
    CommitContributionResponse,
    Contribution,
    GradientRef,
    StepMark,
    UpdateHeader,
    UpdateNonSlotResponse,
    UpdateResponse,
)
from stratagem_proto.v1.tensor_pb2 import Encoding
from stratagem_proto.v1.update_program_pb2 import (
    BackwardPass,
    GraphProgram,
    InputBinding,
    OptimizerProgram,
    UpdateProgram,
)
from stratagem_proto.wire.encodings import Encoded
from stratagem_proto.wire.placed import kinds_of, layout_of
from stratagem_proto.wire.segment import Kind
from stratagem_proto.wire.tensors import spec_of_kind, total_nbytes


class SentGradient(NamedTuple):
    """The gradient of one variable.

    Attributes:
        variable: Its name.
        value: Of the variable's shape and dtype, or of the rows'; perhaps encoded.
        group: Number of the param group whose hyperparameters apply.
        rows: Indices of the rows that `value` has, int64; None for all.
    """

    variable: str
    value: torch.Tensor | Encoded
    group: int
    rows: torch.Tensor | None = None


@dataclass(frozen=True)
class Limits:
    """The limits of what contributions to a synchronous step add up to.

    If a gradient here is not finite, so that the step is dropped or fails, its variable is named,
    whichever server has it.
    """

    of_sum: GradientLimits
    nonfinite_variable: str = ""


def step(
    program: OptimizerProgram | bytes,
    gradients: Sequence[SentGradient],
    contribution: Contribution | None = None,
    limits: Limits | None = None,
    backward: BackwardPass | None = None,
) -> Request[list[int]]:
    """Return the request that steps an optimizer; it gives the versions of the variables after it.

    The program is the optimizer with the hyperparameters of this step, or an encoded part of an
    `UpdateHeader` that says so. With a contribution, the gradients are this worker's part of a
    synchronous step, which the server only keeps until `commit`; then there are no versions.
    `backward` is present when earlier gradients were sent by `keep`.
    """
    header = _begun(contribution, limits)
    if backward is not None:
        header.backward.CopyFrom(backward)
    if isinstance(program, bytes):
        return _with_gradients(header, gradients, program)
    header.program.optimizer.CopyFrom(program)
    return _with_gradients(header, gradients)


def _begun(contribution: Contribution | None, limits: Limits | None) -> UpdateHeader:
    if limits is None:
        return UpdateHeader(contribution=contribution)
    return UpdateHeader(
        contribution=contribution,
        limits=encode_limits(limits.of_sum),
        nonfinite_variable=limits.nonfinite_variable,
    )


class GradientHeaderCache:
    """Says of which variables the dense gradients of a request are, step after step."""

    def __init__(self, gradients: Sequence[tuple[str, int]]) -> None:
        self.variables = frozenset([variable for variable, _ in gradients])
        numbered = enumerate(gradients)
        self._named = _named(tuple([(name, group, n, None) for n, (name, group) in numbered]))
        self._last = layout_of(()), b""

    def step(
        self,
        program: bytes,
        gradients: Sequence[torch.Tensor],
        contribution: Contribution | None = None,
        limits: Limits | None = None,
    ) -> Request[list[int]]:
        """Return a `step` of gradients that are neither of rows nor encoded, in its order."""
        header = _begun(contribution, limits)
        kinds = kinds_of(gradients)
        if kinds != self._last[0].kinds:
            self._last = layout_of(kinds), self._named + _specified(kinds)
        layout, described = self._last
        rest = program + described
        return Request("Update", header, _updated, gradients, rest, layout=layout)


def keep(backward: BackwardPass, gradients: Sequence[SentGradient]) -> Request[list[int]]:
    """Return the request that has a server keep gradients of a pass until their step comes."""
    header = UpdateHeader(backward=backward)
    header.backward.keep = True
    return _with_gradients(header, gradients)


def _with_gradients(
    header: UpdateHeader, gradients: Sequence[SentGradient], rest: bytes = b""
) -> Request[list[int]]:
    if any([isinstance(gradient.value, Encoded) for gradient in gradients]):
        return _with_encoded(header, gradients, rest)
    kinds: dict[Kind, list[int]] = {}
    tensors, places = list[torch.Tensor](), dict[int, tuple[int, int | None]]()
    for number, gradient in enumerate(gradients):
        value = cast("torch.Tensor", gradient.value)
        if gradient.rows is None:
            places[number] = len(tensors), None
            tensors.append(value)
        else:
            kinds.setdefault((value.dtype, value.shape[1:]), []).append(number)
    count = len(tensors)
    for alike in kinds.values():
        values = [cast("torch.Tensor", gradients[number].value) for number in alike]
        rows_of_all = [cast("torch.Tensor", gradients[number].rows) for number in alike]
        sizes = list(map(len, values))
        for joined in (values, rows_of_all):
            header.splits.add(tensor=len(tensors), sizes=sizes)
            tensors.append(torch.cat(joined))
        for place, number in enumerate(alike, count):
            places[number] = place, place + len(alike)
        count += 2 * len(alike)
    named = [(one.variable, one.group, *places[n]) for n, one in enumerate(gradients)]
    rest += _named(tuple(named)) + _specified(kinds_of(tensors))
    return Request("Update", header, _updated, tensors, rest)


# Each step has gradients of the same variables.
@lru_cache(maxsize=64)
def _named(gradients: tuple[tuple[str, int, int, int | None], ...]) -> bytes:
    """Return the part of an `UpdateHeader` that says of which variables gradients are.

    Of each are given the variable, the group, and the numbers of the tensors with its values and,
    unless it is dense, its rows.
    """
    header = UpdateHeader()
    for variable, group, tensor, rows in gradients:
        header.gradients.add(variable=variable, tensor=tensor, group=group, rows=rows)
    return header.SerializeToString()


def _specified(kinds: Sequence[Kind]) -> bytes:
    """Return the part of an `UpdateHeader` that describes tensors."""
    return UpdateHeader(tensors=[spec_of_kind(*kind) for kind in kinds]).SerializeToString()


def _with_encoded(
    header: UpdateHeader, gradients: Sequence[SentGradient], rest: bytes
) -> Request[list[int]]:
    attachments = Attachments()
    refs = [_reference(gradient, attachments) for gradient in gradients]
    derived = [ref.encoding.decoded for ref in refs if ref.HasField("encoding")]
    header.gradients.extend(refs)
    header.tensors.extend(attachments.specs)
    return Request(
        "Update", header, _updated, attachments.tensors, rest, derived_nbytes=total_nbytes(derived)
    )


def _reference(gradient: SentGradient, attachments: Attachments) -> GradientRef:
    value, encoding = gradient.value, None
    if isinstance(value, Encoded):
        companion = attachments.add_optional(value.companion)
        encoding = Encoding(decoded=value.decoded, kind=value.kind, companion=companion)
        value = value.tensor
    return GradientRef(
        variable=gradient.variable,
        tensor=attachments.add(value),
        group=gradient.group,
        rows=attachments.add_optional(gradient.rows),
        encoding=encoding,
    )


class GraphRun(NamedTuple):
    """The versions of variables that a graph program wrote, and its outputs."""

    versions: list[int]
    outputs: list[torch.Tensor]


def run(
    program: GraphProgram,
    bindings: Sequence[InputBinding],
    attachments: Attachments,
    non_slot: bool = False,
) -> Request[GraphRun]:
    """Return the request that runs a graph program.

    The bindings say what its inputs stand for, in order, and point to the attachments. It is
    `non_slot` if it writes variables that belong to no one variable.
    """
    header = UpdateHeader(
        program=UpdateProgram(graph=program), bindings=bindings, tensors=attachments.specs
    )
    method, response = (
        ("UpdateNonSlot", UpdateNonSlotResponse) if non_slot else ("Update", UpdateResponse)
    )
    return Request(method, header, partial(_ran, response), tensors=attachments.tensors)


def commit(
    mark: StepMark, wait: float = 0.0, predecessors: bool = False
) -> Request[CommitContributionResponse]:
    """Return the request that makes this worker's staged part of a step count.

    The server waits up to `wait` seconds for workers whose parts it has dropped. The part may be
    its predecessor's, which was the same task in an earlier process.
    """
    message = CommitContributionRequest(step=mark, wait_seconds=wait, predecessors=predecessors)
    return Request("CommitContribution", message, sole(CommitContributionResponse), wait=wait)


def closed_steps(mark: StepMark, wait: float = 0.0) -> Request[Mapping[int, ClosedStep]]:
    """Return the request for what a server has of the norm of closed steps, by number.

    The server waits up to `wait` seconds until the last step of interest is closed.
    """
    message = ListClosedStepsRequest(group=mark.group, step=mark.step, wait_seconds=wait)
    return Request("ListClosedSteps", message, _listed, wait=wait)


def finish_step(mark: StepMark, norm: GlobalNorm) -> Request[FinishStepResponse]:
    """Return the request that applies a closed step, given the norm on all servers."""
    message = FinishStepRequest(group=mark.group, step=mark.step, norm=norm)
    return Request("FinishStep", message, sole(FinishStepResponse))


def _listed(responses: Responses) -> Mapping[int, ClosedStep]:
    steps = sole(ListClosedStepsResponse)(responses).steps
    return {each.step: each for each in steps}


def _updated(responses: Responses) -> list[int]:
    return list(sole(UpdateResponse)(responses).versions)


def _ran(kind: type[UpdateResponse | UpdateNonSlotResponse], responses: Responses) -> GraphRun:
    response = sole(kind)(responses)
    return GraphRun(list(response.versions), [*map(decode_output, response.outputs)])
