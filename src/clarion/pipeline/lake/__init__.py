"""A Parquet lake of topics, by topic and day: each row once, small files merged, any slice read back.

`lake_layout` decides; `lake_folder` has the files, to which `lake_writer` adds, which `lake_compaction` merges, and
which `lake_reader` reads.
"""

from clarion.pipeline.lake.lake_compaction import TARGET_BYTES, Compacted, compact
from clarion.pipeline.lake.lake_reader import Edge, read_lake

__all__ = ["TARGET_BYTES", "Compacted", "Edge", "compact", "read_lake"]
