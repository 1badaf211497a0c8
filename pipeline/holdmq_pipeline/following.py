"""Finds the command that each command of a task follows at the same session or channel, if that one may be unanswered.

A session or channel knows the last number that it has of a producer. If one command were refused (memory, for example)
and a later one of the same producer stored, a retry of the first would be taken for a repetition. So a command names
the one that it follows (AFTER), and is refused with it. At most two chunks are unanswered at any time (sender.py):
commands in older chunks have been stored.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdmq_pipeline.wire import text_at

__all__ = ["Following", "without_after"]


class Following:
    """Remembers the last number for each name, of one chunk."""

    def __init__(self) -> None:
        self._names: pa.Array | None = None
        self._numbers = np.zeros(0, np.int64)

    def after(self, names: pa.DictionaryArray, rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """The numbers that the commands of the next chunk follow.

        Args:
            names: of each row of the chunk: whose numbers it counts with.
            rows: the first row of each command, in the order in which they are sent.
            numbers: of each command.

        Returns:
            For each command a number, 0: it follows none that may be unanswered.
        """
        found = np.zeros(len(rows), np.int64)
        if not len(rows):
            return found
        codes = names.indices.to_numpy()[rows]
        order = np.argsort(codes, kind="stable")
        new = np.diff(codes[order], prepend=-1) != 0  # the first command of each name
        again = np.flatnonzero(~new)
        found[order[again]] = numbers[order[again - 1]]
        first, last = order[new], order[np.append(np.flatnonzero(new)[1:], len(order)) - 1]
        named = names.dictionary.take(pa.array(codes[first]))
        if self._names is not None:
            places = pc.index_in(named, value_set=self._names).to_numpy(zero_copy_only=False)
            there = ~np.isnan(places)
            found[first[there]] = self._numbers[places[there].astype(np.int64)]
        self._names, self._numbers = named, numbers[last]
        return found


def without_after(command: bytes) -> bytes:
    """A packed command without the number that it follows.

    It is SESSION.ADD key [LIMIT n] PRODUCER p n AFTER n …, or
    CHANNEL.PUBLISH channel message PRODUCER p epoch n AFTER n.
    """
    begin = command.index(b"\r\n") + 2
    places, at = [], begin
    words: list[bytes] = []
    while len(words) < 9 and at < len(command):
        places.append(at)
        word, at = text_at(command, at)
        words.append(word)
    of_session = 7 if words[2] == b"LIMIT" else 5
    after = of_session if words[0] == b"SESSION.ADD" else 7
    if words[after] != b"AFTER":
        raise AssertionError(f"word {after} is {words[after]!r}; expected AFTER")
    _number, end = text_at(command, places[after + 1])
    return b"*%d\r\n%s%s" % (int(command[1 : begin - 2]) - 2, command[begin : places[after]], command[end:])
