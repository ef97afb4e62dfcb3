"""What a diff leaves behind: the guide tool's result file, and the picture of errors by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...measure.sample_statistics import Summary
from ...pages import heading, html_table, page, paragraph
from ...plots import COLOURS, as_file, figure, inline, kind_of
from ...protobuf import encode
from ...runtime.coverage import runs_on
from ..error_measures import Errors
from .diff import Diff
from .layer_diff import IDEAL, SUSPECT, LayerDiff, LayerDiffs

# -- the guide tool's file: a serialised tflite.evaluation.EvaluationStageMetrics ------------------


def stage_metrics(found: Diff) -> bytes:
    profile = {
        "reference_latency": _latency(found.latency[0]),
        "test_latency": _latency(found.latency[1]),
        "output_errors": [_accuracy(o.guide) for o in found.outputs],
    }
    metrics = {"inference_profiler_metrics": profile}
    return encode("EvaluationStageMetrics", {"num_runs": found.runs, "process_metrics": metrics})


def _latency(seconds: Summary) -> dict[str, float]:
    return {
        "max_us": seconds.max * 1e6,
        "min_us": seconds.min * 1e6,
        "avg_us": seconds.mean * 1e6,
        "sum_us": seconds.mean * seconds.count * 1e6,
        "std_deviation_us": seconds.std * 1e6,
    }


def _accuracy(errors: Errors) -> dict[str, float]:
    return {
        "max_value": errors.max_mean_error,
        "min_value": errors.min_error,
        "avg_value": errors.avg_error,
        "std_deviation": errors.std_dev,
    }


# -- the picture ----------------------------------------------------------------------------------

COLUMNS = (">op", "kind", "~tensor", ">local relative", ">local RMSE/scale", ">accumulated",
           ">SNR dB", ">growth", "worst channels", "~remarks")  # fmt: skip


def plot_errors(found: Diff, path: str | Path) -> bytes:
    """Errors by layer as .png or .svg; as .html with the tables below."""
    layers = found.layers
    assert layers is not None, "who plots errors has asked for layers"
    title = f"Error by layer: {_short(found.reference)} against {_short(found.test)}"
    quantised = any(r.local_rmse_scale is not None and r.local_units is None for r in layers.rows)
    rows = 2 if quantised else 1
    with figure(rows, 1, size=(max(7, min(24, 0.22 * len(layers.rows) + 3)), 3.6 * rows + 1)) as (
        made,
        axes,
    ):
        upper = axes[0] if quantised else axes
        _draw_errors(upper, layers)
        if quantised:
            _draw_scales(axes[1], layers)
        _name_layers(axes[1] if quantised else upper, layers)
        if kind_of(path) != ".html":
            made.suptitle(title, fontsize=11, wrap=True)
            return as_file(made, path, title)
        drawn = inline(made)
    said = [paragraph(s) for s in (*summary_lines(layers), *found.notes, *layers.notes)]
    table = html_table(COLUMNS, map(layer_row, layers.rows))
    return page(title, [*said, drawn, heading("Layers in run order"), table]).encode()


def _short(side: dict[str, Any]) -> str:
    wanted = side["delegates"]
    how = runs_on(wanted, side["ops_by_delegate"]) if wanted else side["engine"]
    return f"{Path(side['model']).name} ({how})"


def _draw_errors(axes: Any, layers: LayerDiffs) -> None:
    places = range(len(layers.rows))
    axes.plot(
        places,
        [r.accumulated.relative or None for r in layers.rows],
        "o-",
        ms=3,
        label="accumulated",
    )
    axes.bar(
        places,
        [r.local.relative for r in layers.rows],
        color=_colours(layers.rows),
        label="local (of this op alone)",
    )
    if any(r.accumulated.relative > 0 for r in layers.rows):
        axes.set_yscale("log")
    axes.set_ylabel("relative error")
    axes.legend(frameon=False)


def _draw_scales(axes: Any, layers: LayerDiffs) -> None:
    axes.bar(
        range(len(layers.rows)),
        [r.local_rmse_scale or 0 for r in layers.rows],
        color=_colours(layers.rows),
    )
    axes.axhline(IDEAL, color=COLOURS[2], lw=1, label="rounding alone (0.289)")
    axes.axhline(SUSPECT, color=COLOURS[1], lw=1, ls="--", label=f"suspect ({SUSPECT})")
    axes.set_ylabel("local RMSE / scale")
    axes.legend(frameon=False)


def _colours(rows: list[LayerDiff]) -> list[str]:
    return [COLOURS[1] if r.suspect else COLOURS[5] for r in rows]


def _name_layers(axes: Any, layers: LayerDiffs) -> None:
    step = max(1, len(layers.rows) // 80)
    places = range(0, len(layers.rows), step)
    axes.set_xticks(
        list(places),
        [f"{layers.rows[i].index} {layers.rows[i].op}" for i in places],
        rotation=90,
        fontsize=7,
    )


def layer_row(row: LayerDiff) -> tuple[object, ...]:
    """The cells of COLUMNS."""
    channels = " ".join(f"{c}:{v:.2g}" for c, v in row.worst_channels[:2])
    remarks = list(row.reasons)
    if row.weights_relative:
        remarks.append(f"constants differ by {row.weights_relative:.2g}")
    return (
        row.index,
        row.op,
        row.name,
        number(row.local.relative),
        number(row.local_rmse_scale),
        number(row.accumulated.relative),
        number(row.accumulated.snr_db),
        number(row.growth),
        channels,
        "; ".join(remarks),
    )


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def summary_lines(layers: LayerDiffs) -> list[str]:
    """What the table says, in sentences."""
    lines = [
        f"{len(layers.rows)} tensors matched over {layers.runs} runs; unmatched: "
        f"{len(layers.unmatched_reference)} of the reference, "
        f"{len(layers.unmatched_test)} of the test"
    ]
    first = layers.first_difference
    if first is None:
        return [*lines, "no matched tensor differs"]
    lines.append(f"first difference: {first.where}")
    beyond = layers.first_divergence
    if beyond is None:
        lines.append("no layer is suspect: each local error is within what its type explains")
    else:
        lines.append(f"first divergence: {beyond.where}: {'; '.join(beyond.reasons)}")
    return lines
