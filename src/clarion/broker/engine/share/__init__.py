"""Shared subscriptions: loans, attempts, key order, dead letters."""
