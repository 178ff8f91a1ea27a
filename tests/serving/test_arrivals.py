"""Since when requests may have waited in their sockets."""

import asyncio
import socket
import time

from us3l.serving.arrivals import Arrivals

WAIT = 10


def test_what_came_while_the_loop_worked_may_be_as_old_as_that_work():
    arrivals = Arrivals()
    ours, theirs = socket.socketpair()
    with ours, theirs, arrivals:
        arrivals.register(ours, 1)
        arrivals.select(0)
        began = time.perf_counter()
        theirs.send(b"x")
        time.sleep(0.05)  # the work of a round
        assert arrivals.select(WAIT)
        assert arrivals.since <= began
        assert arrivals.select(WAIT)  # still there: it was not read
        assert arrivals.since >= began + 0.05


def test_what_was_waited_for_came_just_now():
    arrivals = Arrivals()
    ours, theirs = socket.socketpair()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(arrivals)) as runner, theirs:

        async def wait():
            loop = asyncio.get_running_loop()
            ours.setblocking(False)
            loop.call_later(0.05, theirs.send, b"x")
            began = time.perf_counter()
            assert await loop.sock_recv(ours, 1) == b"x"
            return arrivals.since - began

        assert runner.run(wait()) > 0.04
        assert arrivals.rounds > 0
    ours.close()
