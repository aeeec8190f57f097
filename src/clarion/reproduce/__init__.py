"""The experiments of the papers that Clarion follows, run again: their figures, and their claims beside what we see.

Each paper has its own files (`publisher_…` for the tuned publisher); `figure_style` is for all, and for the benches.
"""
