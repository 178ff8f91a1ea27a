"""A bounded queue of images, and threads that compute those of one width together."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from us3l.runtime.networks import Task
from us3l.serving.model import ServedModel
from us3l.serving.refusals import Refusal
from us3l.system.errors import UserError
from us3l.width import Width

LOG = logging.getLogger("us3l.serving")
RECENT = 0.1  # weight of the last batch in the estimate of how busy the machine is


@dataclass(eq=False)
class QueuedRequest:
    """The images of one request on their way through the queue."""

    model: ServedModel
    task: Task
    images: list[bytes]
    width: Width | None
    """None until its turn comes, if the request leaves the choice to the service."""
    limit_ms: float
    """In which it should be answered: else it is refused."""
    deadline: float
    """Of the clock: when it is refused if its turn has not come."""
    finished: Callable[[QueuedRequest], None]
    """Called once, from another thread."""
    arrived: float = field(default_factory=time.perf_counter)
    late_ms: float = 0.0
    """How long it had been there before anybody looked at it, about."""
    started: float | None = None
    ended: float | None = None
    refusal: Refusal | None = None
    rows: list[np.ndarray | None] = field(default_factory=list)
    taken: int = 0
    left: int = 0

    def __post_init__(self) -> None:
        self.rows, self.left = [None] * len(self.images), len(self.images)
        self.automatic = self.width is None

    @property
    def outputs(self) -> np.ndarray:
        rows = [row for row in self.rows if row is not None]
        return rows[0][None] if len(rows) == 1 else np.stack(rows)

    @property
    def waited_ms(self) -> float:
        """Before its turn came."""
        return 1e3 * ((self.started or self.ended or time.perf_counter()) - self.arrived)

    @property
    def took_ms(self) -> float:
        return 1e3 * ((self.ended or time.perf_counter()) - self.arrived)


@dataclass(eq=False)
class ImageBatch:
    """Images that are computed in one go: of jobs of one model, task and width."""

    model: ServedModel
    task: Task
    width: Width
    items: list[tuple[QueuedRequest, int]]


class Scheduler:
    """Takes jobs from any thread, and computes them on its own threads.

    Args:
        workers: Threads that compute.
        capacity: Images that may wait.
        gather_ms: How long an image waits for others of its width, while some are being received.
        batch_ms: How long a batch may take, about, per image of the smallest request that waits: others, who come
            meanwhile and have as long, wait for it.
        batched: Told of each batch: images, and seconds that it took.
    """

    def __init__(
        self,
        workers: int,
        capacity: int,
        gather_ms: float = 0.0,
        batch_ms: float = math.inf,
        batched: Callable[[int, float], None] | None = None,
    ) -> None:
        self.workers, self.capacity, self.gather_ms, self.batch_ms = workers, capacity, gather_ms, batch_ms
        self.slowdown = 1.0
        """How many times as long as on the idle machine an image takes now."""
        self.receiving = 0
        """Requests that are being received: worth waiting for."""
        self._batched = batched
        self._jobs: deque[QueuedRequest] = deque()
        self._images = 0  # that wait; and of these, by what is known of their width:
        self._automatic: Counter[tuple[ServedModel, Task]] = Counter()
        self._named_ms = 0.0  # on the idle machine
        self._running: list[ImageBatch] = []
        self._stopping = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"us3l-serving-{number}", daemon=True) for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    # Coming in

    @property
    def waiting(self) -> int:
        """Images in the queue."""
        with self._changed:
            return self._images

    @property
    def idle(self) -> bool:
        """Whether a job that comes now would be computed at once."""
        return not self._jobs and len(self._running) < self.workers

    def wait_ms(self, narrow: bool = False) -> float:
        """How long a job that comes now would wait for its turn, about.

        Args:
            narrow: If those that leave their width to the service were computed at the narrowest.
        """
        with self._changed:
            return self._wait_ms(narrow)

    def _wait_ms(self, narrow: bool) -> float:
        if self.idle:
            return 0.0
        ahead = sum(len(batch.items) * batch.model.idle_ms(batch.task, batch.width) for batch in self._running) / 2
        ahead += self._named_ms
        for (model, task), images in self._automatic.items():
            ahead += images * model.idle_ms(task, model.narrowest(task) if narrow else model.automatic_width(task))
        return self.slowdown * ahead / self.workers

    def _count(self, job: QueuedRequest, sign: int) -> None:
        """Add the images of a job that wait to those of the queue, or take them off it."""
        images = sign * (len(job.images) - job.taken)
        self._images += images
        if job.width is None:
            self._automatic[job.model, job.task] += images
            if not self._automatic[job.model, job.task]:
                del self._automatic[job.model, job.task]  # else models that were exchanged would stay
        else:
            self._named_ms += images * job.model.idle_ms(job.task, job.width)

    def own_ms(self, model: ServedModel, task: Task, width: Width, images: int) -> float:
        """How long so large a request itself takes, about; several threads share its images."""
        return self.slowdown * model.idle_ms(task, width) * math.ceil(images / self.workers)

    def submit(self, job: QueuedRequest) -> None:
        """Take a job, or raise a `Refusal` at once if there is no room, or it could not be answered in time."""
        with self._changed:
            if self._stopping:
                raise Refusal(503, "the service is stopping", "stopping", wait_ms=1000)
            wait = job.late_ms + self._wait_ms(narrow=job.automatic)
            if self._images + len(job.images) > self.capacity:
                reason = f"the queue is full: it has room for {self.capacity} images"
                raise Refusal(429, reason, "queue", wait_ms=self._wait_ms(narrow=False))
            width = job.model.narrowest(job.task) if job.width is None else job.width
            own = self.own_ms(job.model, job.task, width, len(job.images))
            if wait and wait + own > job.limit_ms:
                reason = f"the service is busy: this would take about {wait + own:.0f} ms, not {job.limit_ms:.0f} ms"
                raise Refusal(503, reason, "deadline", wait_ms=wait)
            self._jobs.append(job)
            self._count(job, +1)
            self._changed.notify()  # a thread that leaves something wakes the next

    def compute_now(self, job: QueuedRequest) -> bool:
        """Compute a job in the thread that calls, which saves the way to another and back.

        Args:
            job: Of one image. Those who come meanwhile wait: the caller knows that nobody does.

        Returns:
            Whether it did: then the job has ended. It does not if there is anything else to do, or if it would take
            longer than a batch may.
        """
        started = time.perf_counter()
        width = job.model.automatic_width(job.task) if job.width is None else job.width
        with self._changed:
            if self._jobs or self._running or self._stopping or self._most(job.model, job.task, width) < 1:
                return False
            batch = ImageBatch(job.model, job.task, width, [(job, 0)])
            self._running.append(batch)
        pixels = job.model.read_small(job.images[0])
        if pixels is None:
            with self._changed:
                self._running.remove(batch)
            return False
        job.started, job.width = started, width
        self._run(batch, started, [pixels])
        return True

    def stop(self) -> None:
        """Take no more jobs, and return when all that were taken are finished."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    # Going out

    def _work(self) -> None:
        while batch := self._take():
            for job in self._run(batch, time.perf_counter()):  # last: what they wake would wait for this thread
                job.finished(job)

    def _run(self, batch: ImageBatch, started: float, pixels: list[np.ndarray] | None = None) -> list[QueuedRequest]:
        """Compute a batch; `pixels` are those of its images, if they were read before.

        Returns:
            The requests of which all images are done now, which do not know it yet.
        """
        done: list[QueuedRequest] = []
        try:
            done = self._compute(batch, pixels)
        except Exception:
            LOG.exception("a batch could not be computed")
            for job, _ in batch.items:
                self._refuse(job, Refusal(500, "internal error", "internal"))
        seconds = time.perf_counter() - started
        with self._changed:
            self._running.remove(batch)
            idle = len(batch.items) * batch.model.idle_ms(batch.task, batch.width) / 1e3
            self.slowdown += RECENT * (seconds / idle - self.slowdown)
        if self._batched:
            self._batched(len(batch.items), seconds)
        return done

    def _take(self) -> ImageBatch | None:
        """The images whose turn it is; None at the end."""
        with self._changed:
            gathered = False
            while True:
                self._drop_late()
                if not self._jobs:
                    if self._stopping:
                        return None
                    self._changed.wait()
                    gathered = False
                    continue
                batch = self._next()
                full = len(batch.items) >= self._most(batch.model, batch.task, batch.width, self._smallest())
                alone = not self._running  # nobody else computes: to wait would be to idle
                if full or gathered or alone or not self.receiving or not self.gather_ms or self._stopping:
                    break
                self._changed.wait(self.gather_ms / 1e3)
                gathered = True
            for job, images in Counter(job for job, _ in batch.items).items():
                self._count(job, -1)
                if job.started is None:
                    job.started, job.width = time.perf_counter(), batch.width
                job.taken += images
                self._count(job, +1)
            self._jobs = deque(job for job in self._jobs if job.taken < len(job.images))
            self._running.append(batch)
            if self._jobs:
                self._changed.notify()
            return batch

    def _drop_late(self) -> None:
        """Jobs that are late before they began, or that failed already, are not computed."""
        now = time.perf_counter()
        for job in list(self._jobs):
            if job.refusal is None and job.started is None and now > job.deadline:
                wait = self._wait_ms(narrow=False)
                self._refuse(job, Refusal(503, "the service is busy: its turn did not come in time", "late", wait))
            if job.refusal is not None:
                self._jobs.remove(job)
                self._count(job, -1)

    def _next(self) -> ImageBatch:
        """The oldest image, and others of its width: no more than the share of one thread."""
        first = self._jobs[0]
        model, task = first.model, first.task
        width = model.automatic_width(task) if first.width is None else first.width
        alike = [
            (job, number)
            for job in self._jobs
            if job.model is model and job.task == task and (job.width is None or job.width == width)
            for number in range(job.taken, len(job.images))
        ]
        share = math.ceil(len(alike) / (self.workers - len(self._running)))
        most = max(1, min(share, self._most(model, task, width, self._smallest())))
        return ImageBatch(model, task, width, list(islice(alike, most)))

    def _smallest(self) -> int:
        """Images of the smallest request that waits."""
        return min(len(job.images) for job in self._jobs)

    def _most(self, model: ServedModel, task: Task, width: Width, smallest: int = 1) -> int:
        """Images that should be computed at once; none if a single one takes longer than a batch may."""
        in_time = smallest * self.batch_ms / (self.slowdown * model.idle_ms(task, width))
        return int(min(in_time, model.together(task, width)))

    def _compute(self, batch: ImageBatch, pixels: list[np.ndarray] | None) -> list[QueuedRequest]:
        readable, alone = batch.items, pixels is not None
        if pixels is None:
            readable, pixels = self._read(batch)
        if not readable:
            return []
        rows = batch.model.compute(pixels, batch.task, batch.width, alone)
        done = []
        with self._changed:
            for (job, number), row in zip(readable, rows, strict=True):
                job.rows[number] = row
                job.left -= 1
                if not job.left and job.refusal is None:
                    job.ended = time.perf_counter()
                    done.append(job)
        return done

    def _read(self, batch: ImageBatch) -> tuple[list[tuple[QueuedRequest, int]], list[np.ndarray]]:
        """What of a batch can be read; the rest is refused."""
        readable, pixels = [], []
        for job, number in batch.items:
            if job.refusal is not None:
                continue
            try:
                pixels.append(batch.model.read(job.images[number], f"image {number}"))
                readable.append((job, number))
            except UserError as error:
                self._refuse(job, Refusal(400, str(error), "image"))
        return readable, pixels

    def _refuse(self, job: QueuedRequest, refusal: Refusal) -> None:
        with self._changed:
            if job.refusal is not None or job.ended is not None:
                return
            job.refusal, job.ended = refusal, time.perf_counter()
        job.finished(job)

    def abandon(self, job: QueuedRequest) -> None:
        """Nobody waits for it any longer."""
        self._refuse(job, Refusal(503, "the service took too long", "late", wait_ms=1000))
