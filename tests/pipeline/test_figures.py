"""What a job says of itself."""

import pytest

from holdmq_pipeline.figures import JobFigures, measured


def test_figures_name_rows_bytes_time_and_rate() -> None:
    figures = JobFigures("archive", rows=3000, bytes=1000, seconds=1.5, counts={"files": 2})
    assert str(figures) == "archive: 3,000 rows, 1,000 bytes in 1.5 s, 2,000 rows/s, files 2"
    assert figures.as_dict() == {
        "job": "archive",
        "rows": 3000,
        "bytes": 1000,
        "seconds": 1.5,
        "rows_per_second": 2000,
        "files": 2,
    }


def test_figures_of_a_job_without_duration_have_no_rate() -> None:
    assert JobFigures("audit", rows=1).rows_per_second == 0.0


def test_a_failed_job_has_its_time_all_the_same() -> None:
    begun: list[JobFigures] = []

    def job() -> None:
        with measured("learn") as figures:
            begun.append(figures)
            raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        job()
    assert begun[0].seconds > 0
