"""Administration of a cluster with LedgerMQ's own client: topics, consumer groups, lag, and the
events of a message."""

import os
import sys

from ledgermq.client import Admin, Backoff, ClusterError, Connection, Refused


def main() -> None:
    with Connection(os.environ.get("LEDGERMQ_ENDPOINTS", "127.0.0.1:8081")) as connection:
        admin = Admin(connection)

        status = admin.status()
        print(
            f"the cluster is {status.health}; leaders:",
            {group.name: group.leader for group in status.groups},
        )

        # Succeeds if the topic exists with the same settings, so a program may start with this.
        topic = admin.create_topic("invoices", queues=4)
        admin.create_group("archive", max_attempts=5, backoff=Backoff(steps_ms=(1_000, 10_000)))
        print(f"{topic.name} is {topic.kind} with {topic.queues} queues")

        for lag in admin.lag("archive", topic="invoices"):
            # None means unknown: a broker group without a leader cannot report.
            print(f"{lag.topic}: {'?' if lag.lag is None else lag.lag} messages wait for archive")
        print(
            "reads on at",
            {
                cursor.queue: cursor.cursor
                for cursor in admin.reset("archive", "invoices", "earliest")
            },
        )

        for message in admin.peek("invoices", limit=1):
            print(admin.why_not_delivered(message.message_id, "archive").answer)

        admin.delete_group("archive")
        admin.delete_topic("invoices")
        try:
            admin.topic("invoices")
        except Refused as refused:
            print("as it should be:", refused)


try:
    main()
except ClusterError as error:
    # No node answers, or the cluster refuses: the error says what happened, and what to do.
    sys.exit(f"error: {error}")
