"""A Parquet lake of topics, by topic and day: each row once, small files merged, any slice read back.

`lake_layout` decides; `lake_folder` has the files, which `lake_writer` adds to and merges, and `lake_reader` reads.
"""

from clarion.pipeline.lake.lake_reader import Edge, read_lake
from clarion.pipeline.lake.lake_writer import TARGET_BYTES, Compacted, compact

__all__ = ["TARGET_BYTES", "Compacted", "Edge", "compact", "read_lake"]
