"""The durable outbox: what is put waits on disk until the broker has it, and survives the application's crash."""
