"""What is answered instead of a result."""

from __future__ import annotations

import math


class Refusal(Exception):
    """A request that gets no result: its HTTP status, and a reason that may be shown to anybody.

    Args:
        status: Such as 400.
        reason: One sentence for the client.
        cause: One word for the metrics.
        wait_ms: After how long the client may try again.
        close: End the connection: the rest of the request does not come. (The server drops what comes after an answer.)
    """

    def __init__(
        self, status: int, reason: str, cause: str = "request", wait_ms: float | None = None, close: bool = False
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.cause, self.wait_ms, self.close = status, reason, cause, wait_ms, close

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of the answer; `Retry-After` is in whole seconds.

        >>> Refusal(503, "busy", wait_ms=1200).headers
        {'retry-after': '2'}
        """
        headers = {} if self.wait_ms is None else {"retry-after": str(max(1, math.ceil(self.wait_ms / 1000)))}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers | ({"connection": "close"} if self.close else {})
