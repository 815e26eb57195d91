"""Counts the calls of each method of the client contract: number, status code, duration.

The loop counts into plain numbers, because every call pays for it; they become Prometheus families
when `/metrics` is read. The code of an answer is read from its first bytes, because every response
of the contract begins with its status; a stream is counted by the message that holds its status.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from ledgermq.node.runtime import mirrored

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
NO_CODE = 0
"""There was no answer, or none with a status."""
_STATUS_TAG, _CODE_TAG = 0x0A, 0x08


class Meter:
    """The counters of one method."""

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.seconds = 0.0

    def count(self, response: bytes, seconds: float) -> None:
        """Count an answered call."""
        self.count_code(code_of(response), seconds)

    def count_code(self, code: int, seconds: float) -> None:
        """Count a call whose code is known."""
        self.codes[code] = self.codes.get(code, 0) + 1
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds

    def count_stream(self, responses: Sequence[bytes], seconds: float) -> None:
        """Count a streamed answer, one of whose messages is its status."""
        self.count(next((part for part in responses if part[:1] == b"\x0a"), b""), seconds)


class Meters:
    """The meters of all methods, by name."""

    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}

    def of(self, method: str) -> Meter:
        """The meter of a method; looked up once, when the method is registered."""
        return self._meters.setdefault(method, Meter())

    def families(self) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
        """The meters as Prometheus families."""
        calls, seconds = mirrored.CALLS.counter(), mirrored.CALL_SECONDS.histogram()
        for method, meter in sorted(self._meters.items()):
            for code, count in sorted(meter.codes.items()):
                calls.add_metric([method, str(code)], count)
            total, buckets = 0, []
            for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], meter.counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            seconds.add_metric([method], buckets, meter.seconds)
        yield calls
        yield seconds


def code_of(response: bytes) -> int:
    """The status code at the start of a serialised response; NO_CODE if there is none."""
    # Field 1, the status; its length, below 128 or two bytes; in it field 1, the code, as a varint.
    if len(response) < 4 or response[0] != _STATUS_TAG:
        return NO_CODE
    at = 2 if response[1] < 0x80 else 3
    if response[at] != _CODE_TAG:
        return NO_CODE
    code = shift = 0
    for byte in response[at + 1 : at + 6]:
        code |= (byte & 0x7F) << shift
        if byte < 0x80:
            return code
        shift += 7
    return NO_CODE
