"""Whether the policy of a server lets its callers do what they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from google.protobuf.message import Message

from stratagem_proto.errors import PermissionDeniedError
from stratagem_proto.serving.access import Caller, name_of
from stratagem_proto.serving.needs import Need
from stratagem_proto.serving.policy.rules import OF_SERVERS, AccessPolicy, Grant, word_of
from stratagem_proto.v1.access_pb2 import Action

_MOST_LINES = 5


class Permissions:
    """What the policy of a server lets its callers do.

    Args:
        policy: The policy.
        owners: Returns the variables under which a name counts: the owners of a slot, and else the
            name itself.
    """

    def __init__(self, policy: AccessPolicy, owners: Callable[[str], Iterable[str]]) -> None:
        self._policy, self._owners = policy, owners

    def require(self, rpc: str, needs: Sequence[Need], caller: Caller, request: Message) -> None:
        """Check that a caller may do all that a request is for.

        Args:
            rpc: The name of the RPC.
            needs: What its calls do.
            caller: Who calls.
            request: The request, or its header.

        Raises:
            PermissionDeniedError: It may not do one of these things.
        """
        grant = self._policy.grant(caller.role, caller.task)
        if grant is None:
            return
        for need in needs:
            if not need.is_in(request):
                continue
            # Who may do it to none of a request's variables may not do it to any.
            if not grant.allows(need.action):
                raise self._denied(rpc, grant, caller, need.action, next(need.names(request), ""))
            for name in need.names(request):
                if not all(grant.allows(need.action, owner) for owner in self._owners(name)):
                    raise self._denied(rpc, grant, caller, need.action, name)

    def _denied(
        self,
        rpc: str,
        grant: Grant,
        caller: Caller,
        action: Action,
        variable: str = "",
    ) -> PermissionDeniedError:
        what, role = word_of(action), name_of(caller.role)
        rule = what if action in OF_SERVERS else f"{what} {variable or 'NAME'}"
        task = f"{caller.task.job}/{caller.task.index}" if caller.task.job else role
        return PermissionDeniedError(
            f"{rpc} is not for {caller.label}, which has the role {role}: the policy "
            f"{self._policy.source!r} {_lines(grant)}, and not "
            f"{what}{f' {variable!r}' if variable else ''}. If it is to, add '{task} may {rule}' "
            "there and start the servers again; else leave this out of its program",
            variable=variable,
        )


def _lines(grant: Grant) -> str:
    if not grant.rules:
        return "has rules of tasks, so who names no task may do what rules of its role allow"
    lines = [str(rule.line) for rule in grant.rules[:_MOST_LINES]]
    more = ["..."] if len(grant.rules) > _MOST_LINES else []
    plural = "s" * (len(grant.rules) > 1)
    return f"lets it do other things (line{plural} {', '.join(lines + more)})"
