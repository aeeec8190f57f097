"""Reading topics with Spark: in batch, ranges fixed once; as a stream, exactly from where the checkpoint ends.

`positions.py`, `marks.py` and `filters.py` decide; `broker.py` and `reading.py` ask the broker.
"""

from clarion.pipeline.source.batch import BatchReader
from clarion.pipeline.source.options import SourceOptions
from clarion.pipeline.source.stream import StreamReader

__all__ = ["BatchReader", "SourceOptions", "StreamReader"]
