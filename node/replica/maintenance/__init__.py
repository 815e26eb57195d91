"""What nodes do together about their replicas, periodically: compare digests of sealed log files, and decide about retention.
"""
