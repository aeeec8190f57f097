"""What Spark finds when it looks for formats."""

from __future__ import annotations

import subprocess
import sys

from pyspark.sql.datasource import DataSource


def test_spark_finds_the_format() -> None:
    import pyspark_clarion

    assert issubclass(pyspark_clarion.DefaultSource, DataSource)
    assert pyspark_clarion.DefaultSource.name() == "clarion"


def test_where_something_is_not_installed_other_formats_are_still_found_and_it_is_said() -> None:
    """Spark imports all that might have a format, in any session, and gives up the lot where one import fails."""
    look = (
        "import sys; sys.modules['pyarrow'] = None; import pyspark_clarion as p; sys.exit(hasattr(p, 'DefaultSource'))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert b'no format("clarion") without the extra spark: import of pyarrow' in done.stderr
