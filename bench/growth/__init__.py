"""How Clarion's speed changes with the size of messages, of batches, with subscribers, topics, and what is stored."""
