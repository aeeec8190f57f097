"""Watching the web together (Corona): channels polled by a ring of nodes, what changed, and who is told.

`channels` and `deltas` are the values, `honeycomb` decides how often each channel is polled, `node` polls, and
`front_end` is for those who subscribe: `from clarion.feeds.front_end import Feeds`.
"""
