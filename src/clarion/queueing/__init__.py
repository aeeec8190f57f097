"""Formulas of queueing theory: Erlang C, the GI/G/m queue, and networks of them by decomposition. Numbers only."""
