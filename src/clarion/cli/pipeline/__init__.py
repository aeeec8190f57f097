"""`clarion pipeline …`: the jobs on Spark."""

from clarion.cli.pipeline.app import pipeline_app

__all__ = ["pipeline_app"]
