"""A model, the queue before it, and what is known of both: all of a service but HTTP."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from us3l.runtime.networks import Task
from us3l.serving.bodies import Bodies, ReceivedImage
from us3l.serving.metrics import ServiceWatch
from us3l.serving.model import ServedModel
from us3l.serving.refusals import Refusal
from us3l.serving.scheduling import QueuedRequest, Scheduler
from us3l.serving.settings import ServiceSettings
from us3l.system.errors import UserError
from us3l.width import Width

LOG = logging.getLogger("us3l.serving")
HANGING = 30.0  # seconds after its deadline in which a job that has begun must end
HEADROOM = 0.8  # share of the target that a request is expected to take at most, as for the controller
LEAST_HEADROOM = 0.3
MISSES = 0.02  # share of the requests at the narrowest width that may take longer than `IN_TIME`
IN_TIME = 0.9  # of the target: the rest is for the way to the client
STEP = 0.02  # by which the headroom falls when one does
SHARE = 0.25  # of the target, that a batch may take
MEGAPIXEL_MS = (
    10.0  # what decoding a million pixels takes, about; a flat colour in 34 bytes takes as long as a photograph
)
PATHS: dict[Task, str] = {"features": "/embed", "classes": "/predict"}


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
        self.ready = False
        self.headroom = HEADROOM
        """Share of the target that a request without a width is expected to take at most, to be accepted."""
        self.lag_ms = 0.0
        """How late the event loop is: as long has a request waited before anything here sees it."""
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

    def check_load(self, task: Task, one_image: bool) -> None:
        """Raise a `Refusal` if a request without a width could not be answered in time, before its body is read. Of too
        many requests this is what most get, so it must cost little.

        Args:
            task: "features" or "classes".
            one_image: Whether it has one image; one that may have several has longer.
        """
        scheduler, model = self.scheduler, self.model
        ahead = scheduler.receiving  # which are not in the queue yet
        if scheduler.idle and not ahead:
            return
        computing = scheduler.own_ms(model, task, model.narrowest(task), 1)
        wait = self.lag_ms + scheduler.wait_ms(narrow=True) + ahead * computing / scheduler.workers
        images = 1 if one_image else self.settings.max_images
        if wait + computing <= images * self.headroom * self.settings.target_ms:
            return
        if one_image:
            automatic = model.automatic_width(task)
            expected = self.lag_ms + scheduler.wait_ms() + scheduler.own_ms(model, task, automatic, 1)
            model.observe(task, automatic, expected, time.perf_counter() - self._started)
        raise Refusal(503, "the service is busy", "busy", wait_ms=wait)

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
        images: Sequence[ReceivedImage],
        task: Task,
        width: Width | None = None,
        latency_ms: float | None = None,
    ) -> Answer:
        """Return features or probabilities of images.

        Args:
            images: Encoded, as in files.
            task: "features" or "classes".
            width: Of the network (default: what the controller decides).
            latency_ms: Take the widest network with which the answer should come within that time, the wait included.

        Raises:
            Refusal: There is no answer, or none in time.
        """
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def finished(_: QueuedRequest) -> None:
            loop.call_soon_threadsafe(complete, ended)

        job = self._job(images, task, width, latency_ms, finished)
        try:
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
        assert job.width is not None
        job.ended = time.perf_counter()  # the way back from the thread that computed is part of it
        loop.call_soon(self._note, job)  # when the answer is on its way
        outputs = job.outputs
        if job.task == "classes":  # row by row, as for one image alone
            outputs = np.concatenate([torch.from_numpy(row[None]).softmax(1).numpy() for row in outputs])
        return Answer(outputs, job.width, job.model, job.waited_ms, job.took_ms)

    def _job(
        self,
        images: Sequence[ReceivedImage],
        task: Task,
        width: Width | None,
        latency_ms: float | None,
        finished: Callable[[QueuedRequest], None],
    ) -> QueuedRequest:
        """Return a request with the width and the time that it gets.

        One that names no width is accepted if it can keep the target at the narrowest; the controller then finds the
        width at which requests do.
        """
        model = self.model
        self.check_ready()
        self.check_task(task, model)
        decode_ms = [MEGAPIXEL_MS * image.megapixels for image in images]
        number = len(images)
        target, deadline = self.settings.target_ms * number, self.settings.deadline_ms * number
        if latency_ms is not None:
            chosen = self._width_within(model, latency_ms, task, number)
            limit = deadline = latency_ms
        elif width is not None:
            chosen, limit = model.width(width, task), deadline
        else:
            chosen, limit, deadline = None, self.headroom * target, max(target, deadline)
        contents = [image.content for image in images]
        by = time.perf_counter() + deadline / 1e3
        return QueuedRequest(model, task, contents, chosen, limit, by, finished, decode_ms=decode_ms)

    def _width_within(self, model: ServedModel, latency_ms: float, task: Task, images: int) -> Width:
        wait = self.scheduler.wait_ms()
        computing = {width: self.scheduler.own_ms(model, task, width, images) for width in model.latencies[task]}
        if fitting := [width for width, ms in computing.items() if wait + ms <= latency_ms]:
            return max(fitting)
        width, idle = min(computing), min(computing.values()) / self.scheduler.slowdown
        if idle > latency_ms:
            raise UserError(f"no width takes at most {latency_ms:g} ms here: {width:g} takes {idle:.3g} ms")
        return width

    def _expected_ms(self, job: QueuedRequest) -> float:
        width = job.model.automatic_width(job.task)
        return self.scheduler.wait_ms() + self.scheduler.own_ms(job.model, job.task, width, len(job.images))

    def _observe(self, job: QueuedRequest, latency_ms: float) -> None:
        """Let the controller see what requests take, and what those that were refused would have taken."""
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
        self.scheduler.stop()


def complete(future: asyncio.Future[None]) -> None:
    """Wake who waits for a request, if anybody still does."""
    if not future.done():
        future.set_result(None)
