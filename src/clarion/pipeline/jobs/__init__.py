"""Jobs on topics as tables: functions from DataFrames to DataFrames, and what runs them against a live broker.

`rates`, `arrivals` and `workload` learn what a system is asked for and how fast it works; `latency` and `deliveries`
how long messages take; `sweep` runs simulations; `archive` and `replay` move topics to a lake and back. Each job has a
file here, and `clarion pipeline` a command for it.

Jobs that join tracking histories (`paths.py`) and poll logs (`polls.py`) belong here too, beside these, once those
capabilities put their records on topics: read them as `task_events` does, join by message id or by topic and time.
"""
