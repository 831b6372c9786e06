"""HTTP/1.1 for clients that shut down their sending side when they have asked: they are answered like others.

A client that is gone looks the same at first: its end of the connection sends no more. Its system refuses what it is
sent, so a client that has not had a byte of its answer is sent an interim response, which every client skips.
"""

from __future__ import annotations

import socket

from uvicorn.protocols.http.h11_impl import H11Protocol

CHECK_SECONDS = 0.05
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
TCP_CLOSE = 7  # linux/tcp_states.h: the first byte of tcp_info, once the other end has refused a packet


class HalfClosable(H11Protocol):
    """uvicorn's protocol, which would drop a connection whose client sends no more."""

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Whether the connection stays open."""
        if not self._is_answering() or self.cycle.more_body:
            return None
        self.cycle.keep_alive = False
        if not self.cycle.response_started and self.scope["http_version"] == "1.1":
            self.transport.write(INTERIM)
        self.loop.call_later(CHECK_SECONDS, self._check)
        return True

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete and not self.transport.is_closing()

    def _check(self) -> None:
        if not self._is_answering():
            return
        end: socket.socket = self.transport.get_extra_info("socket")
        if end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE:
            self.transport.abort()  # the client is gone
        else:
            self.loop.call_later(CHECK_SECONDS, self._check)
