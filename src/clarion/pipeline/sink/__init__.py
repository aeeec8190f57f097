"""Writing tables and streams to topics, exactly once: tasks stage their rows at the broker, the driver shows them.

`options.py` and `schema.py` say what is taken, `packing.py` and `gathering.py` turn record batches into packed ones,
`staging.py` is what a task does, `committing.py` what the driver does, `topics.py` both, `writers.py` what Spark calls.
"""

from clarion.pipeline.sink.options import SinkOptions
from clarion.pipeline.sink.writers import BatchWriter, StreamWriter

__all__ = ["BatchWriter", "SinkOptions", "StreamWriter"]
