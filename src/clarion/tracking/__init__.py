"""Bloom-filter histories that tell where any message went: keys, filters, histories, and what accuracy asks of them."""
