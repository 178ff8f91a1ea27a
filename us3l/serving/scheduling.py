"""A bounded queue of images, and threads that compute those of one width together."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

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
    decode_ms: list[float] = field(default_factory=list)
    """What decoding each image takes, beyond that of a small one; by default nothing."""
    started: float | None = None
    ended: float | None = None
    refusal: Refusal | None = None
    rows: list[np.ndarray | None] = field(default_factory=list)
    taken: int = 0
    left: int = 0

    def __post_init__(self) -> None:
        self.rows, self.left = [None] * len(self.images), len(self.images)
        self.decode_ms = self.decode_ms or [0.0] * len(self.images)
        self.automatic = self.width is None

    @property
    def outputs(self) -> np.ndarray:
        rows = [row for row in self.rows if row is not None]
        return rows[0][None] if len(rows) == 1 else np.stack(rows)

    @property
    def undecoded_ms(self) -> float:
        """Return what decoding the images takes whose turn has not come."""
        return sum(self.decode_ms[self.taken :])

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

    @property
    def idle_ms(self) -> float:
        """Return what it takes on the idle machine."""
        decoding = sum(job.decode_ms[number] for job, number in self.items)
        return decoding + len(self.items) * self.model.idle_ms(self.task, self.width)


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
        self._images = 0  # that wait; and of these, by how they got their width:
        self._automatic: Counter[tuple[ServedModel, Task]] = Counter()
        self._named_ms = self._decode_ms = 0.0  # on the idle machine
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
        """Return whether a job that comes now would be computed at once."""
        return not self._jobs and len(self._running) < self.workers

    def wait_ms(self, narrow: bool = False) -> float:
        """Return how long a job that comes now would wait for its turn, about.

        Args:
            narrow: If those that leave their width to the service were computed at the narrowest.
        """
        with self._changed:
            return self._wait_ms(narrow)

    def _wait_ms(self, narrow: bool) -> float:
        if self.idle:
            return 0.0
        ahead = sum(batch.idle_ms for batch in self._running) / 2 + self._named_ms + self._decode_ms
        for (model, task), images in self._automatic.items():
            ahead += images * model.idle_ms(task, model.narrowest(task) if narrow else model.automatic_width(task))
        return self.slowdown * ahead / self.workers

    def _count(self, job: QueuedRequest, sign: int) -> None:
        """Add the images of a job that wait to those of the queue, or take them off it."""
        images = sign * (len(job.images) - job.taken)
        self._images += images
        self._decode_ms += sign * job.undecoded_ms
        if job.width is None:
            self._automatic[job.model, job.task] += images
            if not self._automatic[job.model, job.task]:
                del self._automatic[job.model, job.task]  # else models that were exchanged would stay
        else:
            self._named_ms += images * job.model.idle_ms(job.task, job.width)

    def own_ms(self, model: ServedModel, task: Task, width: Width, images: int, decode_ms: float = 0.0) -> float:
        """Return how long so large a request itself takes, about; several threads share its images."""
        computing = model.idle_ms(task, width) * math.ceil(images / self.workers)
        return self.slowdown * (computing + decode_ms / self.workers)

    def submit(self, job: QueuedRequest) -> None:
        """Take a job, or raise a `Refusal` at once if there is no room, or it could not be answered in time."""
        with self._changed:
            if self._stopping:
                raise Refusal(503, "the service is stopping", "stopping", wait_ms=1000)
            wait = self._wait_ms(narrow=job.automatic)
            if self._images + len(job.images) > self.capacity:
                reason = f"the queue is full: it has room for {self.capacity} images"
                raise Refusal(429, reason, "queue", wait_ms=self._wait_ms(narrow=False))
            width = job.model.narrowest(job.task) if job.width is None else job.width
            expected = wait + self.own_ms(job.model, job.task, width, len(job.images), job.undecoded_ms)
            if wait and expected > job.limit_ms:
                reason = f"the service is busy: this would take about {expected:.0f} ms, not {job.limit_ms:.0f} ms"
                raise Refusal(503, reason, "deadline", wait_ms=wait)
            self._jobs.append(job)
            self._count(job, +1)
            self._changed.notify()  # a thread that leaves something wakes the next

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

    def _run(self, batch: ImageBatch, started: float) -> list[QueuedRequest]:
        """Compute a batch.

        Returns:
            The requests of which all images are done now, which do not know it yet.
        """
        done: list[QueuedRequest] = []
        try:
            done = self._compute(batch)
        except Exception:
            LOG.exception("a batch could not be computed")
            for job, _ in batch.items:
                self._refuse(job, Refusal(500, "internal error", "internal"))
        seconds = time.perf_counter() - started
        with self._changed:
            self._running.remove(batch)
            self.slowdown += RECENT * (1e3 * seconds / batch.idle_ms - self.slowdown)
        if self._batched:
            self._batched(len(batch.items), seconds)
        return done

    def _take(self) -> ImageBatch | None:
        """Return the images whose turn it is; None at the end."""
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
                alone = not self._running  # nobody else computes: to wait would be to idle
                others = self.receiving and self.gather_ms and not self._stopping
                if alone or gathered or not others or self._is_full(batch):
                    break
                self._changed.wait(self.gather_ms / 1e3)
                gathered = True
            for job, images in Counter(job for job, _ in batch.items).items():
                self._count(job, -1)
                if job.started is None:
                    job.started, job.width = time.perf_counter(), batch.width
                job.taken += images
                self._count(job, +1)
            rest = [job for job in self._jobs if job.taken < len(job.images)]
            self._jobs = deque(sorted(rest, key=lambda job: job.taken > 0))  # those that had a turn wait for the others
            self._running.append(batch)
            if self._jobs:
                self._changed.notify()
            return batch

    def _drop_late(self) -> None:
        """Drop jobs that are late before they began, or that failed already."""
        now = time.perf_counter()
        for job in list(self._jobs):
            if job.refusal is None and job.started is None and now > job.deadline:
                wait = self._wait_ms(narrow=False)
                self._refuse(job, Refusal(503, "the service is busy: its turn did not come in time", "late", wait))
            if job.refusal is not None:
                self._jobs.remove(job)
                self._count(job, -1)

    def _next(self) -> ImageBatch:
        """Return the oldest image, and others of its width: one of each request in turn, at most a thread's share."""
        first = self._jobs[0]
        model, task = first.model, first.task
        width = model.automatic_width(task) if first.width is None else first.width
        alike = [
            (job, number)
            for job in self._jobs
            if job.model is model and job.task == task and (job.width is None or job.width == width)
            for number in range(job.taken, len(job.images))
        ]
        alike.sort(key=lambda item: item[1] - item[0].taken)
        share = math.ceil(len(alike) / (self.workers - len(self._running)))
        most, left_ms = min(share, model.together(task, width)), self._batch_ms
        items: list[tuple[QueuedRequest, int]] = []
        for job, number in alike[:most]:
            left_ms -= self.slowdown * (model.idle_ms(task, width) + job.decode_ms[number])
            if items and left_ms < 0:
                break
            items.append((job, number))
        return ImageBatch(model, task, width, items)

    @property
    def _batch_ms(self) -> float:
        """Return how long a batch may take: longer if all requests that wait have several images."""
        return self.batch_ms * min(len(job.images) for job in self._jobs)

    def _is_full(self, batch: ImageBatch) -> bool:
        """Return whether one image more would be too many, or take too long."""
        if len(batch.items) >= batch.model.together(batch.task, batch.width):
            return True
        more = batch.idle_ms + batch.model.idle_ms(batch.task, batch.width)
        return self.slowdown * more > self._batch_ms

    def _compute(self, batch: ImageBatch) -> list[QueuedRequest]:
        readable, pixels = self._read(batch)
        if not readable:
            return []
        rows = batch.model.compute(pixels, batch.task, batch.width)
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
        """Return what of a batch can be read; the rest is refused."""
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
        """Give up a job for which nobody waits any longer."""
        self._refuse(job, Refusal(503, "the service took too long", "late", wait_ms=1000))
