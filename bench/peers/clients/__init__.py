"""What each system's Python client does in a measurement: one module a system, the same jobs in each.

A job is a function of the server's URL and options; it connects and prepares, calls `start()`, does the work, and gives
what it saw. Every module has these, with these options and `settings`, the system's own, in each:

`prepare(topics, names)`: make the topics, each with a durable subscription for every name. It does not call `start()`.
`publish(topic, count, size)`: one publisher puts that many messages as fast as it can; it ends when all are acked.
`consume(topic, names, count, size)`: be so many subscribers; each gets, checks and acks every message. With one name it
also gives `first`, when the first message had come (`Arrivals.first_at`).
`publish_each(topic, count, size, pause_s)`: put one message, wait for its ack, pause. Gives `sent` and `acked`, in s.
`receive_each(topic, name, count, size)`: get and ack messages as they come. Gives `received`, seconds by number.
`publish_mixed(topics_of, first, count, size)`: be as many publishers as `topics_of` has lists of topics, numbered from
`first`, each with its own connection; each puts `count` messages (`make_mixed_payloads`) on each of its topics, some
on one (`portions`), then some on the next.
`consume_mixed(topics, name, publishers, count)`: be one subscriber for each topic, each with its own connection; each
gets and acks `count` messages from each of that many publishers (`MixedArrivals`).

All but `prepare` give at least `begin` and `end`, by `time.perf_counter()`, which all processes of a machine share.
Payloads are numbered from 0 in their first eight bytes (`make_payloads`); `Arrivals` checks them.

The modules `paced_*` are the clients of `bench/peers/paced`, with jobs of their own. Both sides take orders on standard
input until it ends (`put_steps`, `Seen`), so that one server and its clients can do several loads:

`prepare(topics, readers, each)`: make what so many topics need, for these readers of all of them, or, with `each`, for
a subscriber of each topic.
`put_paced(share, publishers)`: be so many publishers, each with its own connection, over all topics.
`read_paced(name, topics)`: be a reader of all topics.
`read_each(topics)`: be a subscriber for each of these topics, each with its own connection.
"""
