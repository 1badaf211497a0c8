"""Spark jobs over what HoldMQ keeps.

    spark.py      a session with the settings that the jobs need; java.py finds the Java that it runs on
    figures.py    what a job did, in numbers, and its progress
    jobs/         one module for each command `holdmq pipeline ...`

The data source itself, `spark.read.format("holdmq")`, is found by Spark through the module `pyspark_holdmq`.
"""
