"""The console's files for browsers. Those of other projects are unchanged copies: `assets.json`
names their release, licence and SHA-256.

They are read once, at the start. Browsers keep them, and ask whether they changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

FOLDER = Path(__file__).parent / "assets"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def add_assets(application: web.Application) -> None:
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in TYPES:
            application.router.add_get(f"/assets/{path.name}", _served(path))


def _served(path: Path) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    content = path.read_bytes()
    tag = hashlib.sha256(content).hexdigest()

    async def serve(request: web.Request) -> web.StreamResponse:
        answer = web.Response(body=content, content_type=TYPES[path.suffix], charset="utf-8")
        answer.etag = tag
        answer.headers["Cache-Control"] = "no-cache"
        if any(known.value == tag for known in request.if_none_match or ()):
            return web.Response(status=304, headers={"ETag": f'"{tag}"'})
        return answer

    return serve
