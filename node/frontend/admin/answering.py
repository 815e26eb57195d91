"""The one error table of the administration: every failure of a method becomes a `Status`."""

from __future__ import annotations

from typing import Any

from ledgermq.node.frontend.ports import OperatorCall
from ledgermq.node.runtime.deadlines import Serve
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import admin_pb2
from ledgermq.proto.status import Code, LedgerError

log = get_logger()


def answered(method: str, call: OperatorCall) -> Serve:
    """`call` as a method of the service: the answer gets status OK; a failure becomes an empty
    answer with a status."""
    response = getattr(admin_pb2, f"{method}Response")

    async def answer(request: Any, context: Any) -> Any:
        try:
            found = await call(request)
            found.status.code = Code.OK
            return found
        except LedgerError as error:
            code, text = error.code, error.message
        except TimeoutError:
            code, text = Code.PROXY_TIMEOUT, "no answer in time; try again"
        except Exception as error:  # a bug must not reach a client as a traceback
            log.exception("admin call failed")
            code = Code.INTERNAL_SERVER_ERROR
            text = f"internal error, {type(error).__name__}; the node's log says more"
        return response(status=admin_pb2.Status(code=int(code), message=text))

    return answer
