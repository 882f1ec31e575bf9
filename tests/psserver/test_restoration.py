"""Announcements of chiefs that a server keeps."""

from __future__ import annotations

from stratagem_psserver.restoration import Announcements


def test_the_oldest_are_forgotten_before_they_take_much_memory() -> None:
    made = Announcements()
    for number in range(40):
        made.add(f"{number}:{'x' * 50_000}", b"session")
    assert sum(map(len, made.identities)) <= 1 << 20
    numbers = [int(identity.split(":")[0]) for identity in made.identities]
    assert numbers == list(range(40 - len(numbers), 40))
    assert len(numbers) > 10
