"""The subscribers' side: subscriptions, patterns, and reading one that is not shared."""
