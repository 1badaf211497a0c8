"""What several tests of the client share."""

import os
import pickle
import select
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from holdmq import Entry, Message

CHILD_S = 60.0


def message_of(entry: Entry) -> Message:
    """The message of an entry that has one."""
    message = entry.message
    assert message is not None
    return message


def in_child(function: Callable[[], Any], timeout: float = CHILD_S) -> Any:
    """What the function returns, or raises, in a forked process, which has so many seconds."""
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later versions warn of a fork beside threads
        child = os.fork()
    if child == 0:
        try:
            try:
                result: tuple[bool, Any] = (True, function())
            except BaseException as error:  # noqa: BLE001 - it is handed to the parent
                traceback.clear_frames(error.__traceback__)
                result = (False, (type(error), str(error)))
            os.write(sending, pickle.dumps(result))
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        ended, _, _ = select.select([pipe], [], [], timeout)
        if not ended:
            os.kill(child, signal.SIGKILL)
        result_of_child = pipe.read()
    os.waitpid(child, 0)
    assert ended, f"the child did not end within {timeout} seconds"
    done, value = pickle.loads(result_of_child)  # noqa: S301 - of our own child
    if done:
        return value
    raise value[0](value[1])
