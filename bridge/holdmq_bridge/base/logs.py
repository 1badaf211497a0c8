"""Logs as JSON lines on standard error, an object for each event.

An event is a short fixed sentence, with facts as keywords:  log.info("client connected", client="c1").
"""

import json
import logging
import sys
import time
from typing import Any

_ROOT = "holdmq.bridge"


class JsonLines(logging.Formatter):
    """Formats time (UTC, ms), level and event, then the facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Makes the line of an event."""
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
    """A logger whose keywords become facts of the line."""

    __slots__ = ("_logger",)

    def __init__(self, name: str = "") -> None:
        self._logger = logging.getLogger(f"{_ROOT}.{name}" if name else _ROOT)

    def debug(self, event: str, **facts: object) -> None:
        """For following a single connection."""
        if self._logger.isEnabledFor(logging.DEBUG):
            self._logger.debug(event, extra={"facts": facts})

    def info(self, event: str, **facts: object) -> None:
        """For what an operator may want to know."""
        if self._logger.isEnabledFor(logging.INFO):
            self._logger.info(event, extra={"facts": facts})

    def warning(self, event: str, **facts: object) -> None:
        """For what may need attention."""
        self._logger.warning(event, extra={"facts": facts})

    def error(self, event: str, **facts: object) -> None:
        """For what needs attention."""
        self._logger.error(event, extra={"facts": facts})

    def defect(self, event: str, error: Exception, **facts: object) -> None:
        """For an unexpected exception, with its traceback."""
        self._logger.error(event, extra={"facts": facts}, exc_info=error)


def configure(level: str) -> None:
    """Sends the bridge's logs to standard error; `level`: a name of the logging module."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger(_ROOT)
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
