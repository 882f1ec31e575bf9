"""What a chief decides, whoever ends, is late or is cut off meanwhile."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem._ps_client.arbitration import ViewRegister
from stratagem_proto.v1.arbitration_pb2 import Question, Report
from stratagem_proto.v1.replication_pb2 import Replica
from tests.full import examples
from tests.psserver.replication.arbiters.chief_model import ADDRESSES, World

# How often something happens, in the middle of several orders.
WEIGHTS = {
    "hear": 8.0,
    "listen": 8.0,
    "move": 6.0,
    "write": 6.0,
    "take_on": 4.0,
    "dial": 2.0,
    "take_over": 2.0,
    "go_on_alone": 2.0,
    "give_up": 1.0,
    "cut": 1.0,
    "hand_over": 0.5,
    "rounds": 0.5,
    "restart": 0.3,
    "restart_chief": 0.2,
}


def wander(seed: int, steps: int) -> World:
    """Lets things happen in any order; some more often in one order than in another."""
    chance, world = random.Random(seed), World()
    weights = [weight * chance.choice([0.3, 1, 3]) for weight in WEIGHTS.values()]
    for event in chance.choices([*WEIGHTS], weights, k=steps):
        which, index = chance.randrange(2), chance.randrange(2)
        happen(world, event, which, index)
    return world


def happen(world: World, event: str, which: int, index: int) -> None:
    match event:
        case "hear":
            world.chiefs[which].hear(index)
        case "dial":
            world.dial(which, index)
        case "rounds" | "restart_chief":
            getattr(world, event)(which)
        case _:
            getattr(world, event)(index)


# Long orders go further than those that are drawn event by event.
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=examples(400), deadline=None)
@given(seeds)
def test_no_two_lead_and_nothing_acknowledged_is_lost(seed: int) -> None:
    wander(seed, 300)


@settings(max_examples=examples(50), deadline=None)
@given(seeds)
def test_a_task_that_is_started_again_is_served(seed: int) -> None:
    world = wander(seed, 100)
    for which in range(2):
        world.restart_chief(which)
        world.restart(which)
    world.rounds(0, 8)
    assert any(process.lead is not None for process in world.processes)


def with_backup() -> World:
    """A task whose process 0 leads, with process 1 as the backup."""
    world = World()
    world.rounds(0, 4)
    world.take_on(0)
    world.rounds(0)
    leads, follows = world.processes
    assert leads.lead is not None and leads.lead.backup == follows.me
    world.write(0)
    assert follows.state is not None and follows.state.count == 1
    return world


def forget(world: World) -> None:
    """Starts the chief again."""
    world.restart_chief(0)
    for index in range(2):
        world.cut(index)


def test_one_replica_alone_is_told_nothing() -> None:
    world = World()
    world.dial(0, 0)
    for _ in range(4):
        world.move(0)
        world.chiefs[0].hear(0)
        world.listen(0)
    assert world.processes[0].pledge.known is None
    assert world.chiefs[0].register.delay() == (
        "it does not reach the replica at host-1:1; start it, or see why"
    )


def test_a_new_chief_goes_on_with_what_both_know() -> None:
    world = with_backup()
    forget(world)
    world.rounds(0)
    view = world.chiefs[0].register.view
    assert view == world.processes[0].lead
    world.restart(0)
    world.take_over(1)
    world.rounds(0)
    assert world.processes[1].lead is not None
    world.check_lead(world.processes[1])


def test_a_new_chief_waits_for_a_replica_that_may_have_led_meanwhile() -> None:
    for lost in range(2):
        world = with_backup()
        forget(world)
        world.restart(lost)
        world.rounds(0, 8)
        register = world.chiefs[0].register
        assert register.view is None
        assert f"the replica at host-{lost}:1 has ended" in register.delay()
        # Another state of the number proves only that the former has ended.
        assert world.processes[lost].lead is None


def test_what_was_asked_for_may_have_been_granted() -> None:
    world = World()
    world.rounds(0, 4)
    world.take_on(0)
    world.chiefs[0].hear(0)
    granted = world.chiefs[0].register.view
    assert granted is not None and granted.HasField("backup")
    # The answer is lost. The backup may have been told, and have led before it ended.
    forget(world)
    world.restart(1)
    world.rounds(0, 8)
    assert "the replica at host-1:1 has ended" in world.chiefs[0].register.delay()


def test_a_chief_that_others_have_left_admits_nobody() -> None:
    world = with_backup()
    former = world.chiefs[0].register
    for index in range(2):
        world.cut(index)
    world.rounds(1)
    world.restart(0)
    # The former chief does not know yet that its calls are over.
    world.chiefs[0].calls.pop(0)
    former.left("host-0:1")
    world.dial(0, 0)
    for _ in range(8):
        world.move(0)
        world.chiefs[0].hear(0)
        world.listen(0)
    assert former.delay() == "it waits for the replica at host-1:1; see that it is not suspended"
    assert world.processes[0].pledge.known is None


def test_a_chief_does_not_count_on_a_replica_that_has_taken_another_one() -> None:
    world = with_backup()
    for index in range(2):
        world.cut(index)
    while world.chiefs[0].calls:
        for index in range(2):
            world.chiefs[0].hear(index)
    world.rounds(1)
    world.cut(1)
    world.dial(0, 1)
    world.give_up(1)
    known = world.processes[1].pledge.known
    for _ in range(4):
        world.move(1)
        world.chiefs[0].hear(1)
        world.listen(1)
    assert world.processes[1].asking is not None
    assert world.processes[1].pledge.known == known
    assert "does not reach the replica at host-0:1" in world.chiefs[0].register.delay()


def test_a_chief_goes_on_with_a_replica_that_has_taken_no_other_chief() -> None:
    world = with_backup()
    term = world.chiefs[0].register.term
    for index in range(2):
        world.cut(index)
        world.chiefs[0].hear(index)
    world.restart(0)
    world.rounds(0)
    world.take_over(1)
    world.rounds(0)
    assert world.chiefs[0].register.term == term
    assert world.processes[1].lead is not None


def test_two_replicas_with_one_number_are_not_decided_about() -> None:
    register = ViewRegister(ADDRESSES)
    for address in ADDRESSES:
        replica = Replica(index=1, instance=address.encode(), address=address)
        register.joined(address, Report(replica=replica))
    for address in ADDRESSES:
        replica = Replica(index=1, instance=address.encode(), address=address)
        register.reported(address, Report(inquiry=2, replica=replica))
    assert register.term == 0
    assert "at host-0:1 and host-1:1 have the same --replica 1; stop one" in register.delay()


def test_who_has_not_said_what_it_knows_is_not_answered() -> None:
    register = ViewRegister(ADDRESSES)
    assert register.asked(ADDRESSES[0], Question(number=1)) == []
    assert register.reported(ADDRESSES[0], Report(inquiry=1)) == []


def test_epochs_go_on_after_all_replicas_have_ended() -> None:
    world = with_backup()
    for index in range(2):
        world.restart(index)
    world.rounds(0, 8)
    view = world.chiefs[0].register.view
    assert view is not None and view.epoch > 2
