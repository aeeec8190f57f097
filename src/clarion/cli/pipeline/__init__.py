"""`clarion pipeline …`: the jobs on Spark."""

from clarion.cli.pipeline.pipeline_app import pipeline_app

__all__ = ["pipeline_app"]
