"""Tests of the Spark pipeline: one Spark for all of them, real servers, results compared with plain Python's."""
