"""Where every batch went: what a broker notes and keeps of it, as filters and exactly, with the accuracy that this has;
and the paths of messages that follow from what brokers answer.

`exported` has histories as files, and `verdicts` tells from these what became of messages by the million.
"""
