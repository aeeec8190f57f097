"""Which version this is."""

__version__ = "0.3.0"
