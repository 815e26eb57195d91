"""Merges the Settings that a client gets back: its own, completed by the server's decisions (§2.4).
Pure."""

from __future__ import annotations

from ledgermq.node.runtime.config_sections import Delivery, Limits
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.names import LITE_MAX
from ledgermq.proto.types import Backoff, GroupConfig

PRODUCER_ATTEMPTS = 3
_SECOND = 1000
_MINUTE = 60_000
_HOUR = 3_600_000
RETRY_STEPS_MS = (
    *(1 * _SECOND, 5 * _SECOND, 10 * _SECOND, 30 * _SECOND),
    *(
        1 * _MINUTE,
        2 * _MINUTE,
        3 * _MINUTE,
        4 * _MINUTE,
        5 * _MINUTE,
        6 * _MINUTE,
        7 * _MINUTE,
        8 * _MINUTE,
        9 * _MINUTE,
        10 * _MINUTE,
    ),
    *(20 * _MINUTE, 30 * _MINUTE, 1 * _HOUR, 2 * _HOUR),
)
"""The default backoff of push consumers in ms, by attempt: when they ask again for a message that
they could not process."""


def merge(
    client: pb.Settings, group: GroupConfig | None, delivery: Delivery, limits: Limits
) -> pb.Settings:
    """A copy of the client's settings with every field the official clients need. `group`: the
    consumer group, if it is configured."""
    merged = pb.Settings()
    merged.CopyFrom(client)
    merged.metric.Clear()
    merged.metric.on = False
    merged.metric.SetInParent()
    if merged.WhichOneof("pub_sub") == "publishing":
        _publishing(merged, limits)
    else:
        _subscription(merged, group, delivery, limits)
    return merged


def retry_policy(group: GroupConfig | None) -> Backoff:
    """The backoff after which a message that was not processed comes again."""
    return (
        group.backoff
        if group is not None and group.backoff is not None
        else Backoff(RETRY_STEPS_MS)
    )


def retry_ms(policy: Backoff, attempt: int) -> int:
    """The backoff in ms after a failed attempt, as push consumers compute it."""
    if policy.steps_ms:
        return policy.steps_ms[min(max(attempt, 1), len(policy.steps_ms)) - 1]
    delay_ms = float(policy.initial_ms)
    for _ in range(1, attempt):
        delay_ms = min(delay_ms * policy.multiplier, policy.max_ms)
    return int(delay_ms)


def _publishing(merged: pb.Settings, limits: Limits) -> None:
    backoff = merged.backoff_policy
    backoff.Clear()
    backoff.max_attempts = PRODUCER_ATTEMPTS
    backoff.exponential_backoff.initial.FromMilliseconds(10)
    backoff.exponential_backoff.max.FromMilliseconds(1000)
    backoff.exponential_backoff.multiplier = 2.0
    # Never the client's own number: 0 would block every send, and Python clients send 128 MiB.
    merged.publishing.max_body_size = limits.max_body_bytes
    merged.publishing.validate_message_type = True


def _subscription(
    merged: pb.Settings, group: GroupConfig | None, delivery: Delivery, limits: Limits
) -> None:
    backoff = merged.backoff_policy
    backoff.Clear()
    backoff.max_attempts = delivery.max_attempts if group is None else group.max_attempts
    policy = retry_policy(group)
    if policy.steps_ms:
        for step_ms in policy.steps_ms:
            backoff.customized_backoff.next.add().FromMilliseconds(step_ms)
    else:
        backoff.exponential_backoff.initial.FromMilliseconds(policy.initial_ms)
        backoff.exponential_backoff.max.FromMilliseconds(policy.max_ms)
        backoff.exponential_backoff.multiplier = policy.multiplier
    subscription = merged.subscription
    # Each lite topic has an order of its own; a client that processes several messages of a batch
    # concurrently would break it.
    subscription.fifo = group is not None and (group.fifo or bool(group.lite_topic))
    subscription.receive_batch_size = limits.max_receive_batch
    subscription.long_polling_timeout.FromMilliseconds(delivery.long_poll_max_ms)
    if merged.client_type in (pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER):
        subscription.lite_subscription_quota = limits.max_lite_subscriptions
        subscription.max_lite_topic_size = LITE_MAX
