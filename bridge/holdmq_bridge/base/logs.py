"""Logs as JSON lines on standard error: one object per event, so that machines can read them and people can too.

Whoever logs gives a short fixed sentence and the facts as keywords:  log.info("client connected", client="c1").
"""

import json
import logging
import sys
import time
from typing import Any

_ROOT = "holdmq.bridge"


class JsonLines(logging.Formatter):
    """time (UTC, ms), level, event, then the facts of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        facts: dict[str, Any] = getattr(record, "facts", {})
        line.update(facts)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=readable)


def readable(value: object) -> str:
    """Text for people, also of bytes that are not UTF-8."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


class Log:
    """Thin face of a logger whose keywords become facts of the line."""

    __slots__ = ("_logger",)

    def __init__(self, name: str = "") -> None:
        self._logger = logging.getLogger(f"{_ROOT}.{name}" if name else _ROOT)

    def debug(self, event: str, **facts: object) -> None:
        """What helps to follow a single connection."""
        if self._logger.isEnabledFor(logging.DEBUG):
            self._logger.debug(event, extra={"facts": facts})

    def info(self, event: str, **facts: object) -> None:
        """What an operator may want to know."""
        if self._logger.isEnabledFor(logging.INFO):
            self._logger.info(event, extra={"facts": facts})

    def warning(self, event: str, **facts: object) -> None:
        """What may need attention."""
        self._logger.warning(event, extra={"facts": facts})

    def error(self, event: str, **facts: object) -> None:
        """What does."""
        self._logger.error(event, extra={"facts": facts})

    def defect(self, event: str, error: Exception, **facts: object) -> None:
        """An exception that nobody foresaw, with its traceback."""
        self._logger.error(event, extra={"facts": facts}, exc_info=error)


def configure(level: str) -> None:
    """Sends the bridge's logs to standard error.  `level` is a name that logging knows."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger(_ROOT)
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
