"""Asking a broker about itself, and looking after its topics, subscriptions and dead letters."""

from clarion.admin.admin import (
    Admin,
    DeadLetter,
    LinkDescription,
    LinkedBroker,
    LinksDescription,
    PublisherReport,
    Replayed,
    SubscriptionDescription,
    TopicDescription,
    TopicUsage,
    Trace,
)

__all__ = [
    "Admin",
    "DeadLetter",
    "LinkDescription",
    "LinkedBroker",
    "LinksDescription",
    "PublisherReport",
    "Replayed",
    "SubscriptionDescription",
    "TopicDescription",
    "TopicUsage",
    "Trace",
]
