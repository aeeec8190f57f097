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
"""
