"""Clarion beside what people would pick instead: the same work, on the same machine, in the same run."""
