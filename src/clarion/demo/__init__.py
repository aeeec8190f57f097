"""The demo: a broker, publishers and subscribers in processes of their own, with the broker killed in the middle.

It is a user of the library, started by `clarion demo`.
"""

from clarion.demo.run import Archived, Began, DemoRun, Moved, Report, Said

__all__ = ["Archived", "Began", "DemoRun", "Moved", "Report", "Said"]
