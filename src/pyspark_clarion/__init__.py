"""Found by Spark itself: where this package is importable, `format("clarion")` works without registering it."""

from clarion.pipeline.datasource import ClarionDataSource as DefaultSource

__all__ = ["DefaultSource"]
