"""Jobs on topics as tables: functions from DataFrames to DataFrames, and what runs them against a live broker.

`rates` learns what a system is asked for and how fast it works; `latency` and `deliveries` how long
messages take; `channels` how often watched pages change; `audit` where messages went; `sweep` runs simulations;
`archive` and `replay` move topics to a lake and back. `clarion pipeline` has a command for each job. Events of other
capabilities are read as `rates.read_task_events` does, by `time_columns`.
"""
