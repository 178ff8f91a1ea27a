"""A model, the queue before it, and what is known of both: all of a service but HTTP."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from us3l.runtime.networks import Task
from us3l.serving.bodies import Bodies
from us3l.serving.metrics import ServiceWatch
from us3l.serving.model import ServedModel
from us3l.serving.refusals import Refusal
from us3l.serving.scheduling import QueuedRequest, Scheduler
from us3l.serving.settings import ServiceSettings
from us3l.system.errors import UserError
from us3l.width import Width

LOG = logging.getLogger("us3l.serving")
HANGING = 30.0  # seconds after its deadline in which a job that has begun must end
NOTABLE_MS = 3.0  # less is the ordinary switching of threads
HEADROOM = 0.8  # share of the target that a request is expected to take at most, as for the controller
LEAST_HEADROOM = 0.3
MISSES = 0.02  # share of the requests at the narrowest width that may take longer than `IN_TIME`
IN_TIME = 0.9  # of the target: the rest is for the way to the client
STEP = 0.02  # by which the headroom falls when one does
SHARE = 0.25  # of the target, that a batch may take
PATHS: dict[Task, str] = {"features": "/embed", "classes": "/predict"}
TASKS: dict[bytes, Task] = {path.encode(): task for task, path in PATHS.items()}


@dataclass(eq=False)
class Answer:
    """What came out for the images of one request."""

    outputs: np.ndarray
    """N x C, float32: features, or probabilities."""
    width: Width
    model: ServedModel
    """Which one gave it: embeddings of two models cannot be compared."""
    waited_ms: float
    """Before its turn came."""
    took_ms: float
    """From its arrival to the result."""


class Service:
    """Answers requests with a model that can be exchanged meanwhile.

    Args:
        load: Gives the model, and gives it again for `reload`; it is not prepared yet.
        settings: What is accepted, and how long it may take.
    """

    def __init__(self, load: Callable[[], ServedModel], settings: ServiceSettings) -> None:
        self.settings, self._load = settings, load
        self.model = load()
        self.ready = self.stopping = False
        self.headroom = HEADROOM
        """Share of the target that a request without a width is expected to take at most, to be accepted."""
        self.bodies = Bodies(settings)
        self.watch = ServiceWatch(lambda: float(self._width()), lambda: self.scheduler.waiting)
        self.scheduler = Scheduler(
            settings.workers,
            settings.queue,
            settings.gather_ms,
            settings.target_ms * SHARE,
            lambda images, _: self.watch.batch.observe(images),
        )
        self._started = time.perf_counter()
        self._turn = self._passed = 0

    def _width(self) -> Width:
        return self.model.automatic_width(self.model.gives[0])

    def prepare(self) -> None:
        """Measure the model; requests are refused until then."""
        self.model.prepare()
        self.ready = True

    def reload(self) -> bool:
        """Load the model again, from where it came, and let it take over. Requests go on; those that were accepted are
        answered by the old one.

        Returns:
            Whether it did: a model that cannot be loaded changes nothing.
        """
        try:
            model = self._load()
            model.prepare(self.model)
        except (UserError, OSError) as error:
            LOG.error("the model was not loaded again: %s", error)
            self.watch.reloads.labels("failed").inc()
            return False
        self.model = model
        self.watch.reloads.labels("loaded").inc()
        LOG.warning("model %s is served now", model.identity)
        return True

    def refused_unread(self, path: bytes, query: bytes, kind: bytes, arrived: float, turn: int) -> bool:
        """Whether a request can be refused before it is read, because it could not be answered in time. If there are
        far too many, this is what most of them get, so it must cost little.

        Args:
            path: Of the request.
            query: What comes after the path.
            kind: Its content type, which says whether it is one image.
            arrived: Of the clock: when it came, at the earliest.
            turn: Number of the loop's round: what passed in the same one is not in the queue yet.
        """
        if turn != self._turn:
            self._turn, self._passed = turn, 0
        waited = late_ms(arrived)
        if not waited and self.scheduler.idle and not self._passed:
            self._passed = 1
            return False
        task, model = TASKS.get(path), self.model
        if task is None or task not in model.latencies:
            return False
        images = 1 if kind.startswith((b"image/", b"application/octet")) else self.settings.max_images
        if b"width=" in query or b"latency_ms=" in query:
            return waited > images * self.settings.deadline_ms
        own = self.scheduler.own_ms(model, task, model.narrowest(task), 1)
        wait = waited + self.scheduler.wait_ms(narrow=True) + self._passed * own / self.scheduler.workers
        if not wait or wait + own <= images * self.headroom * self.settings.target_ms:
            self._passed += 1
            return False
        if images == 1:
            width = model.automatic_width(task)
            expected = waited + self.scheduler.wait_ms() + self.scheduler.own_ms(model, task, width, 1)
            model.observe(task, width, expected, time.perf_counter() - self._started)
        return True

    def check_open(self) -> None:
        """Raise a `Refusal` while nothing can be accepted."""
        if self.stopping:
            raise Refusal(503, "the service is stopping", "stopping", wait_ms=1000)
        self.check_ready()

    def check_ready(self) -> None:
        """Raise a `Refusal` until the model is prepared."""
        if not self.ready:
            raise Refusal(503, "the service is not ready yet", "starting", wait_ms=1000)

    def check_task(self, task: Task, model: ServedModel | None = None) -> None:
        """Raise a `Refusal` if the model, by default the present one, cannot do that."""
        gives = (model or self.model).gives
        if task not in gives:
            raise Refusal(404, f"this model has no {PATHS[task]}: it gives {' and '.join(gives)}")

    async def answer(
        self,
        images: list[bytes],
        task: Task,
        width: Width | None = None,
        latency_ms: float | None = None,
        arrived: float | None = None,
        alone: bool = False,
    ) -> Answer:
        """Features or probabilities of images.

        Args:
            images: Encoded, as in files.
            task: "features" or "classes".
            width: Of the network (default: what the controller decides).
            latency_ms: Take the widest network with which the answer should come within that time, the wait included.
            arrived: Of the clock: when the request came (default: now).
            alone: Nobody else is connected who would wait if this thread computed.

        Raises:
            Refusal: There is no answer, or none in time.
        """
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def finished(_: QueuedRequest) -> None:
            loop.call_soon_threadsafe(settle, ended)

        job = self._job(images, task, width, latency_ms, arrived, finished)
        try:
            if not (alone and len(images) == 1 and self.scheduler.compute_now(job)):
                self.scheduler.submit(job)
                async with asyncio.timeout(job.deadline - job.arrived + HANGING):
                    await ended
            if job.refusal is not None:
                raise job.refusal
        except TimeoutError:
            self.scheduler.abandon(job)
            raise Refusal(503, "the service took too long", "late", wait_ms=1000) from None
        except Refusal as refusal:
            if job.automatic and refusal.cause in ("queue", "deadline", "late"):
                self._observe(job, max(job.took_ms, self._expected_ms(job)))
            raise
        return self._answer(job, loop)

    def answer_now(
        self, image: bytes, task: Task, width: Width | None, latency_ms: float | None, arrived: float
    ) -> Answer | None:
        """The same for the only image of the only client, computed in this thread, which is the event loop's.

        Returns:
            None if it must take the usual way: `answer`.
        """
        job = self._job([image], task, width, latency_ms, arrived, lambda _: None)
        if not self.scheduler.compute_now(job) or job.refusal is not None:
            return None
        return self._answer(job, asyncio.get_running_loop())

    def _answer(self, job: QueuedRequest, loop: asyncio.AbstractEventLoop) -> Answer:
        assert job.width is not None
        job.ended = time.perf_counter()  # the way back from the thread that computed is part of it
        loop.call_soon(self._note, job)  # when the answer is on its way
        outputs = job.outputs
        if job.task == "classes":  # row by row, as for one image alone
            outputs = np.concatenate([torch.from_numpy(row[None]).softmax(1).numpy() for row in outputs])
        return Answer(outputs, job.width, job.model, job.waited_ms, job.took_ms)

    def _job(
        self,
        images: list[bytes],
        task: Task,
        width: Width | None,
        latency_ms: float | None,
        arrived: float | None,
        finished: Callable[[QueuedRequest], None],
    ) -> QueuedRequest:
        """A request with the width and the time that it gets. A request that names no width is accepted if it can keep
        the target at the narrowest; the controller then finds the width at which requests do."""
        model = self.model
        self.check_ready()
        self.check_task(task, model)
        arrived = time.perf_counter() if arrived is None else arrived
        number, late = len(images), late_ms(arrived)
        target, deadline = self.settings.target_ms * number, self.settings.deadline_ms * number
        if latency_ms is not None:
            width, limit, deadline = self._width_within(model, latency_ms, task, number, late), latency_ms, latency_ms
        elif width is not None:
            width, limit = model.width(width, task), deadline
        else:
            limit, deadline = self.headroom * target, max(target, deadline)
        return QueuedRequest(model, task, images, width, limit, arrived + deadline / 1e3, finished, arrived, late)

    def _width_within(self, model: ServedModel, latency_ms: float, task: Task, images: int, late: float) -> Width:
        wait = late + self.scheduler.wait_ms()
        own = {width: self.scheduler.own_ms(model, task, width, images) for width in model.latencies[task]}
        if fitting := [width for width, ms in own.items() if wait + ms <= latency_ms]:
            return max(fitting)
        width, idle = min(own), min(own.values()) / self.scheduler.slowdown
        if idle > latency_ms:
            raise UserError(f"no width takes at most {latency_ms:g} ms here: {width:g} takes {idle:.3g} ms")
        return width

    def _expected_ms(self, job: QueuedRequest) -> float:
        width = job.model.automatic_width(job.task)
        return (
            job.late_ms + self.scheduler.wait_ms() + self.scheduler.own_ms(job.model, job.task, width, len(job.images))
        )

    def _observe(self, job: QueuedRequest, latency_ms: float) -> None:
        """The controller sees what requests take, and what those that were refused would have taken."""
        width = job.model.automatic_width(job.task) if job.width is None else job.width
        job.model.observe(job.task, width, latency_ms / len(job.images), time.perf_counter() - self._started)

    def _note(self, job: QueuedRequest) -> None:
        assert job.width is not None
        if job.automatic:
            self._observe(job, job.took_ms)
            self._adapt(job)
        self.watch.answered(PATHS[job.task], job.width, len(job.images), job.took_ms / 1e3)

    def _adapt(self, job: QueuedRequest) -> None:
        """Accept less while more requests than a few miss the target though the width cannot fall any more: what they
        are expected to take is a guess."""
        if job.width != job.model.narrowest(job.task):
            self.headroom = HEADROOM
        elif job.took_ms > IN_TIME * self.settings.target_ms * len(job.images):
            self.headroom = max(LEAST_HEADROOM, self.headroom - STEP)
        else:
            self.headroom = min(HEADROOM, self.headroom + STEP * MISSES)

    def stop(self) -> None:
        """Answer what was accepted, and end the threads."""
        self.stopping = True
        self.scheduler.stop()


def late_ms(arrived: float) -> float:
    """How long a request was there before anybody looked at it, if that is worth noting."""
    late = 1e3 * (time.perf_counter() - arrived)
    return late if late > NOTABLE_MS else 0.0


def settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
