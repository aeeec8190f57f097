"""Found by Spark itself: where this package is importable, `format("clarion")` works without registering it."""

import logging

try:
    from clarion.pipeline.datasource import ClarionDataSource as DefaultSource
except ImportError as error:  # Spark looks for formats here in any session, and would find none at all
    logging.getLogger("clarion.pipeline").warning('no format("clarion") without the extra spark: %s', error)

__all__ = ["DefaultSource"]
