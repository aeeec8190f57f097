"""Where a broker is, unless somebody says otherwise."""

DEFAULT_URL = "tcp://127.0.0.1:5590"
