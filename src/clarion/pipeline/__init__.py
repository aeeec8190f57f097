"""The data pipeline on Spark: `format("clarion")` to read and write topics as tables, and the jobs.

Needs PySpark (the extra `spark`) and Java 17 or newer.
"""
