"""Spark jobs that read and write the messages of HoldMQ.

    spark.py      a SparkSession with the settings that the jobs need; java.py finds the Java for it
    figures.py    the results of a job as numbers, and its progress
    jobs/         one module for each command `holdmq pipeline ...`

Spark finds the data source, `spark.read.format("holdmq")`, through the module `pyspark_holdmq`.
"""
