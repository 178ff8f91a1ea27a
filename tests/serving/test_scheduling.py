"""The queue, without HTTP and without a clock to wait for: a model whose images take as long as the test wants."""

import threading

import numpy as np
import pytest

from us3l.serving.refusals import Refusal
from us3l.serving.scheduling import QueuedRequest, Scheduler
from us3l.system.errors import UserError

WAIT = 60


class Model:
    """Ten milliseconds per image at full width, by its own account; it computes when the test lets it."""

    def __init__(self, most=8):
        self.auto, self.calls, self.most = 1.0, [], most
        self.go, self.begun = threading.Semaphore(0), threading.Semaphore(0)

    def automatic_width(self, _):
        return self.auto

    def narrowest(self, _):
        return 0.25

    def idle_ms(self, _, width):
        return 10.0 * width

    def together(self, *_):
        return self.most

    def read(self, image, place):
        if image == b"bad":
            raise UserError(f"cannot read {place}")
        return image

    def compute(self, pixels, task, width):
        self.begun.release()
        assert self.go.acquire(timeout=WAIT)
        self.calls.append((task, width, list(pixels)))
        return np.array([[len(image)] for image in pixels], np.float32)


class Made:
    """A scheduler, and jobs for it."""

    def __init__(self, workers=1, capacity=100, most=8):
        self.model, self.scheduler = Model(most), Scheduler(workers, capacity)
        self.finished = threading.Semaphore(0)

    def job(self, *images, width=1.0, task="features", limit_ms=1e6, late=False, model=None, decode_ms=()):
        deadline = -1.0 if late else 1e12
        job = QueuedRequest(
            model or self.model, task, list(images), width, limit_ms, deadline, self._finish, decode_ms=[*decode_ms]
        )
        self.scheduler.submit(job)
        return job

    def _finish(self, _):
        self.finished.release()

    def occupied(self):
        """Once the only thread computes something, all else waits."""
        job = self.job(b"first")
        assert self.model.begun.acquire(timeout=WAIT)
        return job

    def run(self, jobs, batches):
        for _ in range(batches):
            self.model.go.release()
        for _ in range(jobs):
            assert self.finished.acquire(timeout=WAIT)


@pytest.fixture
def made():
    found = Made()
    yield found
    for _ in range(100):
        found.model.go.release()
    found.scheduler.stop()
    assert found.scheduler.waiting == 0
    assert found.scheduler._named_ms == pytest.approx(0)
    assert found.scheduler._decode_ms == pytest.approx(0)
    assert not found.scheduler._automatic


def test_images_of_one_width_are_computed_together_the_oldest_first(made):
    made.occupied()
    jobs = [made.job(b"a"), made.job(b"bb", width=0.5), made.job(b"ccc", b"d"), made.job(b"e", task="classes")]
    made.run(5, 4)
    assert made.model.calls[1:] == [
        ("features", 1.0, [b"a", b"ccc", b"d"]),
        ("features", 0.5, [b"bb"]),
        ("classes", 1.0, [b"e"]),
    ]
    assert jobs[2].outputs.tolist() == [[3.0], [1.0]]


def test_no_more_together_than_the_network_takes(made):
    made.occupied()
    made.job(*[b"x"] * 19)
    made.run(2, 4)
    assert [len(images) for _, _, images in made.model.calls] == [1, 8, 8, 3]


def test_no_more_together_than_can_be_waited_for(made, monkeypatch):
    monkeypatch.setattr("us3l.serving.scheduling.RECENT", 0.0)  # what it really takes does not matter
    made.occupied()
    made.scheduler.batch_ms = 35
    for _ in range(7):
        made.job(b"x")  # of 10 ms each
    made.job(*[b"y"] * 20, width=0.25)
    made.run(9, 7)
    assert [len(images) for _, _, images in made.model.calls] == [1, 3, 3, 1, 8, 8, 4]
    made.scheduler.batch_ms = 1e-9
    made.job(*[b"x"] * 2)
    made.run(1, 2)
    assert [len(images) for _, _, images in made.model.calls[7:]] == [1, 1]


def test_requests_of_several_images_have_longer_and_so_have_their_batches(made, monkeypatch):
    monkeypatch.setattr("us3l.serving.scheduling.RECENT", 0.0)
    made.occupied()
    made.scheduler.batch_ms = 15  # per image, of 10 ms each
    made.job(*[b"x"] * 9)
    made.job(*[b"x"] * 4)
    made.run(3, 4)
    assert [len(images) for _, _, images in made.model.calls] == [1, 6, 6, 1]


def test_free_threads_share_the_images_of_a_request():
    made = Made(workers=2)
    made.job(*[b"x"] * 6)
    made.run(1, 6)
    made.scheduler.stop()
    assert max(len(images) for _, _, images in made.model.calls) == 3


def test_the_width_is_settled_when_the_turn_comes(made):
    made.occupied()
    jobs = [made.job(b"a", width=None), made.job(b"b", width=0.5)]
    made.model.auto = 0.5  # the load has risen
    made.run(3, 2)
    assert made.model.calls[1:] == [("features", 0.5, [b"a", b"b"])]
    assert [job.width for job in jobs] == [0.5, 0.5]


def test_a_new_model_does_not_mix_with_the_old(made):
    made.occupied()
    other = Model()
    made.job(b"a")
    made.job(b"b", model=other)
    other.go.release()
    made.run(3, 2)
    assert [images for _, _, images in made.model.calls] == [[b"first"], [b"a"]]
    assert [images for _, _, images in other.calls] == [[b"b"]]


def test_a_damaged_image_is_the_trouble_of_its_request_only(made):
    made.occupied()
    good, bad, last = made.job(b"a"), made.job(b"b", b"bad", b"c"), made.job(b"d")
    made.run(4, 2)
    assert good.outputs.tolist() == last.outputs.tolist() == [[1.0]]
    assert (bad.refusal.status, bad.refusal.reason) == (400, "cannot read image 1")


def test_a_full_queue_refuses_at_once():
    made = Made(capacity=3)
    made.occupied()
    made.job(b"a", b"b")
    with pytest.raises(Refusal) as refused:
        made.job(b"c", b"d")
    assert refused.value.status == 429
    assert refused.value.headers == {"retry-after": "1"}
    made.job(b"c")
    assert made.scheduler.waiting == 3
    made.run(3, 4)
    made.scheduler.stop()


def test_what_would_come_too_late_is_refused_at_once(made):
    made.occupied()  # half of its 10 ms are to go
    made.job(*[b"x"] * 10)  # 100 ms
    assert made.scheduler.wait_ms() == pytest.approx(105)
    made.job(b"in time", limit_ms=120)
    with pytest.raises(Refusal, match="this would take about 125 ms, not 120 ms") as refused:
        made.job(b"too late", limit_ms=120)
    assert refused.value.status == 503
    made.scheduler.slowdown = 2.0
    assert made.scheduler.wait_ms() == pytest.approx(230)


def test_requests_without_a_width_count_as_the_narrowest_of_which_they_may_be_made(made):
    made.occupied()
    made.job(*[b"x"] * 10, width=None)
    assert made.scheduler.wait_ms() == pytest.approx(105)
    assert made.scheduler.wait_ms(narrow=True) == pytest.approx(30)
    made.job(b"a", width=None, limit_ms=33)
    with pytest.raises(Refusal):
        made.job(b"b", width=None, limit_ms=33)


def test_on_an_idle_machine_nothing_is_too_late(made):
    made.job(b"a", limit_ms=0.001)
    made.run(1, 1)


def test_a_turn_that_comes_too_late_is_not_computed(made):
    made.occupied()
    job = made.job(b"late", late=True)
    made.run(2, 1)
    assert (job.refusal.status, job.refusal.cause) == (503, "late")
    assert len(made.model.calls) == 1


def test_stopping_finishes_what_was_accepted(made):
    made.occupied()
    jobs = [made.job(b"a"), made.job(b"b", width=0.5)]
    stopper = threading.Thread(target=made.scheduler.stop)
    stopper.start()
    while not made.scheduler._stopping:
        pass
    with pytest.raises(Refusal, match="stopping"):
        made.job(b"c")
    made.run(3, 3)
    stopper.join(WAIT)
    assert [job.outputs.tolist() for job in jobs] == [[[1.0]], [[1.0]]]


def test_a_network_that_fails_fails_its_requests_only(made, caplog):
    job = made.job(b"a")
    assert made.model.begun.acquire(timeout=WAIT)
    made.model.calls = None  # which it cannot append to
    made.run(1, 1)
    assert (job.refusal.status, job.refusal.reason) == (500, "internal error")
    assert "a batch could not be computed" in caplog.text
    made.model.calls = []
    made.job(b"b")
    made.run(1, 1)


def test_an_image_waits_for_others_that_are_being_received_while_another_is_computed():
    made = Made(workers=2, most=2)
    made.occupied()
    made.scheduler.gather_ms, made.scheduler.receiving = 1e3 * WAIT, 1
    made.job(b"a")
    assert not made.model.begun.acquire(timeout=0.1)
    made.job(b"b")
    assert made.model.begun.acquire(timeout=WAIT)
    made.run(3, 2)
    made.scheduler.stop()
    assert sorted(images for _, _, images in made.model.calls) == [[b"a", b"b"], [b"first"]]


def test_an_image_does_not_wait_if_nothing_else_is_computed(made):
    made.scheduler.gather_ms, made.scheduler.receiving = 1e3 * WAIT, 1
    made.job(b"a")
    made.run(1, 1)


def test_the_estimate_follows_what_batches_take(made):
    made.model.idle_ms = lambda *_: 1e-3
    made.job(b"a")
    made.run(1, 1)
    made.job(b"b")  # after which the first is accounted for
    made.run(1, 1)
    assert made.scheduler.slowdown > 1


def test_one_request_of_many_large_images_does_not_hold_others_up(made, monkeypatch):
    """They come in turns: one image of each request, and what takes long to decode is computed alone."""
    monkeypatch.setattr("us3l.serving.scheduling.RECENT", 0.0)
    made.occupied()
    made.scheduler.batch_ms = 50
    made.job(*[b"large"] * 3, decode_ms=[400.0] * 3)
    made.job(b"a")
    made.job(b"b")
    made.run(4, 5)
    assert [images for _, _, images in made.model.calls[1:]] == [[b"large"], [b"a", b"b"], [b"large"], [b"large"]]


def test_decoding_counts_in_the_queue(made):
    made.occupied()
    made.job(b"large", b"large", decode_ms=[400.0, 400.0])
    assert made.scheduler.wait_ms() == pytest.approx(5 + 20 + 800)
    with pytest.raises(Refusal, match="the service is busy"):
        made.job(b"a", limit_ms=500)
    with pytest.raises(Refusal, match="about 1235 ms"):
        made.job(b"large", limit_ms=1000, decode_ms=[400.0])
    made.run(2, 3)
