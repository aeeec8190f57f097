"""What the broker does on its own: retention, expiry, unloading, letting go."""
