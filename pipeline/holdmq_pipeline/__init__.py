"""Spark jobs over what HoldMQ keeps."""
