"""A Parquet lake of topics, by topic and day: each row once, small files merged, any slice read back.

`layout`, `planning` and `pacing` decide, `folder` does what they say to files.
"""

from clarion.pipeline.lake.lake_compaction import TARGET_BYTES, Compacted, compact
from clarion.pipeline.lake.lake_reader import Edge, read_lake

__all__ = ["TARGET_BYTES", "Compacted", "Edge", "compact", "read_lake"]
