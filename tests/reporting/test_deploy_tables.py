from rich.console import Console

from us3l.deploy.accuracies import Accuracies
from us3l.reporting import style
from us3l.reporting.deploy_tables import profile_figure, profile_table
from us3l.run.profiles import Costs, Latency, Profile

BACKENDS = ("torch", "onnx", "openvino")
WIDTHS = (1.0, 0.75, 0.375)
PROFILE = Profile(
    32,
    [Costs(width, 11_200_000, 557_000_000, 44_700_000, 98_304) for width in (*WIDTHS, 0.25)],
    [
        Latency(width, backend, batch, 0.8125 * width * batch * place, 109.25)
        for width in WIDTHS
        for place, backend in enumerate(BACKENDS, start=1)
        for batch in (1, 8)
    ],
)
FOUND = Accuracies("pets", "linear", {1.0: 70.0, 0.75: 71.0, 0.375: 60.0})


def test_the_table_fits_a_terminal_and_has_what_was_timed():
    console = Console(width=80)
    with console.capture() as captured:
        console.print(profile_table(PROFILE, FOUND, batch=1))
    lines = captured.get().splitlines()
    assert "…" not in captured.get()
    rows = [line for line in lines if line.split() and line.split()[0].endswith("x")]
    assert [row.split()[0] for row in rows] == ["1x", "0.75x", "0.375x"]
    assert "0.81/109" in rows[0]


def test_the_front_is_marked(tmp_path, monkeypatch):
    drawn = []

    class Kept(style.Figure):
        def savefig(self, *arguments, **options):
            drawn.append(self)
            super().savefig(*arguments, **options)

    monkeypatch.setattr(style, "Figure", Kept)
    profile_figure(PROFILE, FOUND, tmp_path / "a.png", "title")
    (figure,) = drawn
    assert len(figure.axes) == 2  # one for each batch size
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert list(lines["ONNX Runtime"].get_xdata()) == [2 * 0.8125 * width for width in sorted(WIDTHS)]
    (front,) = (line for name, line in lines.items() if str(name).startswith("Pareto"))
    # Full width is slower and less accurate than 0.75.
    assert list(zip(front.get_xdata(), front.get_ydata(), strict=True)) == [(0.8125 * 0.375, 60), (0.8125 * 0.75, 71)]
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_without_accuracies_the_width_is_drawn(tmp_path):
    profile_figure(PROFILE, None, tmp_path / "a.png", "title")
    assert (tmp_path / "a.png").stat().st_size > 10_000
