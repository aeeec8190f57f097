"""Bloom-filter histories that tell where any message went: keys, filters, histories, and what accuracy asks of them.

`exported` has histories as files, and `verdicts` tells from these what became of messages by the million.
"""
