"""`python -m tests.spec [NAME …] [--without GUARD]`: explore models, or a model without one guard,
and print what TLC says."""

from __future__ import annotations

import argparse
import resource
import time

from tests.spec import models, tlc


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spec", description="Explore models of the specification with TLC."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of {', '.join(models.MODELS)}; default: all"
    )
    parser.add_argument(
        "--without",
        choices=models.PLANTED,
        metavar="GUARD",
        help=f"one of {', '.join(models.PLANTED)}",
    )
    given = parser.parse_args()
    if given.without is not None:
        print(
            tlc.check(
                "Model",
                models.PLANTED[given.without][0].without(given.without).config(),
                short=True,
            ).output
        )
        return
    for name in given.names or models.MODELS:
        began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        found = tlc.check("Model", models.MODELS[name].config())
        processor_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used
        verdict = "holds" if found.finished else f"{found.violated or 'an error'}\n{found.output}"
        times = f"{time.monotonic() - began:.0f} s, {processor_s:.0f} s of processor time"
        print(
            f"{name}: {verdict}; {found.states:,} states, depth {found.depth}, {times}", flush=True
        )


if __name__ == "__main__":
    main()
