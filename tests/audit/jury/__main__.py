"""`python -m tests.audit.jury`: thousands of damaged and of healthy directories before the auditor, and what came of them.

    python -m tests.audit.jury --cases 10000 --seed 1
    python -m tests.audit.jury --healthy 300 --seed 1
    python -m tests.audit.jury --only "flipped bit of index size" --cases 50

The seed is printed first. The exit status is 1 when the auditor missed anything, misplaced or misnamed it, or raised a false alarm.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.audit.jury.court import Session, sit, swear_in


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.audit.jury")
    parser.add_argument("--cases", type=int, default=10_000, help="damaged directories")
    parser.add_argument("--healthy", type=int, default=200, help="healthy directories, killed and stopped in all ways")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose description holds this text")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    print(f"seed {options.seed}: {options.cases} damaged and {options.healthy} healthy clusters", flush=True)
    session = Session()
    with tempfile.TemporaryDirectory(prefix="jury-") as base:
        sit(session, Path(base) / "damaged", options.cases, options.seed, only=options.only, tell=print)
        swear_in(session, Path(base) / "healthy", options.healthy, options.seed, tell=print)
    figures = session.as_object()
    if options.json is not None:
        options.json.write_text(json.dumps({"seed": options.seed, **figures}, indent=1) + "\n")
    print(json.dumps(figures, indent=1))
    return 1 if session.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
