"""The systems' servers: each started on loopback with its own temporary data and ports, measured, killed, stopped."""
