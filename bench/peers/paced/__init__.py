"""An ordinary pace: so many messages a second over many topics, readers of all that ack; who delivers, how late, and
what it costs. `loads` says what is asked, `sessions` runs it with the clients in `bench/peers/clients/paced_*.py`,
`verdicts` judges, `pages` and `curves` tell; `soak` looks for what grows."""
