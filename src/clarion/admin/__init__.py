"""Asking a broker about itself, and configuring its topics."""

from clarion.admin.admin import Admin

__all__ = ["Admin"]
