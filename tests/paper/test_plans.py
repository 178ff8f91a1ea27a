import pytest

from us3l.description import write_description
from us3l.paper.cells import cells_of, job_of
from us3l.paper.plans import plan_table
from us3l.paper.scales import scale_of
from us3l.run.training_log import Speed, append_speed


def test_what_is_left_takes_as_long_as_what_is_done(tmp_path):
    plan = plan_table("main-cifar100", out=tmp_path, absent_too=True)
    first, second, untimed, *_ = plan.jobs
    whole = plan.effort
    assert plan.seconds is None
    for job, seconds in ((first, [20.0, 10.0]), (second, [60.0]), (untimed, [])):  # the first was resumed
        run = plan.place.run(job)
        run.model.mkdir(parents=True)
        write_description(run.model, {"metadata": {}})
        for time in seconds:
            append_speed(run, Speed(9, 0, 64, time, 0.0))
    assert plan.effort == pytest.approx(whole - first.effort - second.effort - untimed.effort)
    assert plan.seconds == pytest.approx(plan.effort * 90 / (first.effort + second.effort))


def test_the_precision_is_that_of_new_runs(tmp_path):
    plan = plan_table("main-cifar100", out=tmp_path, precision="bf16-mixed", absent_too=True)
    assert plan.place.config(plan.jobs[0]).machine.precision == "bf16-mixed"


def test_the_run_of_a_figure_is_worked_out_once():
    mini = scale_of("mini")
    cell, same = (cells_of("ablation", mini)[0] for _ in range(2))
    assert job_of(cell, mini, 0) is job_of(same, mini, 0)
    assert job_of(cell, mini, 0).name != job_of(cell, mini, 1).name
