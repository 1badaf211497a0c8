"""Long work of several clients: they take turns, a slice in each turn of the event loop."""

import asyncio

from holdmq_bridge.process.slices import Slices


async def test_clients_take_turns_and_each_turn_of_the_loop_does_one_slice() -> None:
    slices, turn = Slices(), 0
    done: list[tuple[str, int]] = []
    left = {"a": 3, "b": 2, "c": 1}

    def work(name: str) -> None:
        done.append((name, turn))
        left[name] -= 1
        if left[name]:
            slices.add(lambda: work(name))

    for name in left:
        slices.add(lambda name=name: work(name))  # type: ignore[misc]
    while any(left.values()):
        turn += 1
        await asyncio.sleep(0)
        assert turn < 100
    assert [name for name, _ in done] == ["a", "b", "c", "a", "b", "a"]
    assert len({at for _, at in done}) == len(done)


async def test_work_that_is_added_later_begins_without_another_push() -> None:
    slices = Slices()
    for _ in range(2):
        done = asyncio.Event()
        slices.add(done.set)
        await asyncio.wait_for(done.wait(), 10)
