"""What classification tasks share: top-k, the class offset, confusion, paired comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...ir import Array
from ...runtime.inputs import class_names
from ..paired_statistics import paired, score_distance, wilson
from ..task import Metrics, Ports, Prediction, Sample, Task, setting

TOP = 10
SHOWN = 100  # samples on which two models differ that a record keeps
LOOKED_AT = 100  # samples whose scores decide the offset
AUTO = "auto"


def top(scores: Array, count: int) -> Array:
    """The best classes. Of equal scores the first is the better, as in TensorFlow Lite's tool."""
    keys = -scores
    last = np.partition(keys, count - 1)[count - 1]
    # Only these have to be sorted, those that tie with the last among them.
    near = np.flatnonzero(keys <= last) if last == last else np.arange(keys.size)  # NaNs are last
    return near[np.argsort(keys[near], kind="stable")[:count]].astype(np.int32)


@dataclass(kw_only=True)
class Classification(Task):
    """One sample, one class. `Sample.truth` is its number in the labels' own counting."""

    headline = "top1"
    figures = ("top1", "top5", "classes", "labels.least", "labels.largest", "offset.value")
    model_output_labels: Path | None = setting(
        "--model_output_labels",
        default=None,
        metavar="FILE",
        help="The model's class names, one a line, in its output's order.",
    )
    offset: str = setting(
        "--label-offset",
        default=AUTO,
        metavar="N|auto",
        help="What to add to a label to get the model's class: 1 for a model of 1001 classes and "
        "labels from 0. auto: found by the number of classes, and by the score of each on the "
        "first samples.",
    )

    def open(self, ports: Ports) -> None:
        super().open(ports)
        self.labelled = "the task's samples"  # where labels come from
        self.seen = 0, 0, 0  # the least and the largest of them, and the number of samples
        shape = ports.output.shape
        self.classes = shape[-1] if shape else 0
        if self.classes < 2:
            raise InputError(
                f"output {ports.output.type_text} holds no scores of classes",
                where=ports.model,
                fix="a classifier gives [1, classes]",
            )
        self.names = class_names(self.model_output_labels) if self.model_output_labels else []
        if self.names and len(self.names) != self.classes:
            raise InputError(
                f"{len(self.names)} names, the model has {self.classes} classes",
                where=str(self.model_output_labels),
                fix="the file must have a name for every output of the model, a "
                "background class included",
            )
        if self.offset != AUTO:
            _number(self.offset)

    def scores(self, outputs: list[Array]) -> Array:
        """One number a class. Frames of a longer sample, one row each, are averaged."""
        found = outputs[0].reshape(-1, outputs[0].shape[-1])
        return found[0] if len(found) == 1 else found.mean(axis=0)

    def postprocess(self, sample: Sample, outputs: list[Array], context: Any) -> Prediction:
        scores = self.scores(outputs)
        best = top(scores, min(TOP, self.classes))
        found = {"top": best, "top_scores": scores[best].astype(np.float32)}
        return found | {"scores": scores.astype(np.float32)} if self.detail else found

    # -- labels ---------------------------------------------------------------------------------

    def check_labels(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """Before any inference: can these labels be classes of this model at all?"""
        if not samples:
            return samples
        least, most = (f(int(s.truth) for s in samples) for f in (min, max))
        self.seen = least, most, len(samples)
        if not self._possible(least, most):
            raise InputError(
                f"the labels of {self.labelled} go from {least} to {most}, the model has "
                f"{self.classes} classes"
                + (f" and the offset is {self.offset}" if self.offset != AUTO else ""),
                where=self.ports.model,
                fix="give the labels of this model's classes, or another --label-offset",
            )
        return samples

    def _possible(self, least: int, most: int) -> list[int]:
        offsets = (0, 1, -1) if self.offset == AUTO else (_number(self.offset),)
        return [o for o in offsets if least + o >= 0 and most + o < self.classes]

    def found_offset(self, samples: Sequence[Sample], best: Array) -> dict[str, Any]:
        """The offset and why it was chosen."""
        truth = np.array([int(s.truth) for s in samples])
        if self.offset != AUTO:
            return {"value": _number(self.offset), "why": "stated"}
        possible = self._possible(int(truth.min()), int(truth.max()))
        hits = {o: int((best[:LOOKED_AT, 0] == truth[:LOOKED_AT] + o).sum()) for o in possible}
        usual = 1 if self.classes == 1001 and 1 in hits else 0 if 0 in hits else possible[0]
        chosen = max(hits, key=lambda o: (hits[o], o == usual))
        looked = min(LOOKED_AT, len(truth))
        scored = ", ".join(f"{o:+d}: {n}" for o, n in hits.items())
        why = f"{self.classes} classes; right of the first {looked}, by offset: {scored}"
        return {"value": chosen, "why": why}

    # -- figures --------------------------------------------------------------------------------

    def metric(self, samples: Sequence[Sample], predictions: Sequence[Prediction]) -> Metrics:
        best = np.stack([p["top"] for p in predictions])
        offset = self.found_offset(samples, best)
        truth = np.array([int(s.truth) for s in samples]) + offset["value"]
        within = np.cumsum(best == truth[:, None], axis=1)
        hits = [int(n) for n in within.sum(axis=0)]
        count = len(samples)
        metrics: Metrics = {
            "top1": hits[0] / count,
            "top5": hits[min(4, len(hits) - 1)] / count,
            "topk": [n / count for n in hits],
            "right": hits,
            "intervals": {
                f"top{k}": list(wilson(hits[k - 1], count)) for k in (1, 5) if k <= len(hits)
            },
            "classes": self.classes,
            "labels": {"from": self.labelled, "least": self.seen[0], "largest": self.seen[1]},
            "offset": offset,
            "worst_classes": self._worst(truth, best[:, 0]),
            "confusions": self._confusions(truth, best[:, 0]),
        }
        doubts = "; ".join(filter(None, (self._mismatch(), self._doubt(hits[0], count))))
        return metrics | ({"warning": doubts} if doubts else {})

    def _mismatch(self) -> str:
        """Labels of another set of classes. One class less is usual: it is the background. Where
        samples are fewer than classes nobody can tell."""
        least, most, count = self.seen
        if count < self.classes or self.classes - most - 1 in (0, 1):
            return ""
        return (
            f"labels of {count} samples go from {least} to {most}, but the model has "
            f"{self.classes} classes: check that these are labels of its classes"
        )

    def _doubt(self, right: int, count: int) -> str:
        """Return a warning if the model is no better than guessing: it is rarely to blame."""
        if count >= 20 and wilson(right, count)[0] <= 1 / self.classes:
            return (
                "the accuracy is that of guessing: check the preprocessing (mean, std, colour "
                "order), the labels and their offset"
            )
        return ""

    def _worst(self, truth: Array, said: Array, most: int = 10) -> list[dict[str, Any]]:
        """Classes with the smallest share of right answers, and what was said instead."""
        found = []
        for number in np.unique(truth):
            own = said[truth == number]
            right = int((own == number).sum())
            others = Counter(own[own != number].tolist()).most_common(3)
            if right < own.size:
                found.append(
                    {
                        "class": int(number),
                        "name": self.name_of(int(number)),
                        "samples": int(own.size),
                        "right": right,
                        "instead": [
                            {"class": c, "name": self.name_of(c), "times": n} for c, n in others
                        ],
                    }
                )
        found.sort(key=lambda f: (f["right"] / f["samples"], -f["samples"], f["class"]))  # type: ignore[operator]
        return found[:most]

    def _confusions(self, truth: Array, said: Array, most: int = 10) -> list[dict[str, Any]]:
        """Pairs of classes that are taken for one another, whichever way."""
        wrong = truth != said
        pairs = Counter(
            tuple(sorted(p)) for p in zip(truth[wrong].tolist(), said[wrong].tolist(), strict=True)
        )
        most_often = sorted(pairs.items(), key=lambda kv: (-kv[1], kv[0]))[:most]
        return [
            {"classes": [a, b], "names": [self.name_of(a), self.name_of(b)], "times": n}
            for (a, b), n in most_often
        ]

    def name_of(self, number: int) -> str:
        return self.names[number] if 0 <= number < len(self.names) else f"class {number}"

    def lines(self, metrics: Metrics) -> list[str]:
        """Return the figures for people; the lines of TensorFlow Lite's tool come first."""
        found = [f"Top-{k} Accuracy: {v:g}" for k, v in enumerate(metrics["topk"], 1)]
        for name, (low, high) in metrics["intervals"].items():
            found.append(f"{name}: {metrics[name]:.2%}, 95 % interval {low:.2%} to {high:.2%}")
        offset, labels = metrics["offset"], metrics["labels"]
        found.append(
            f"labels: {labels['from']}, from {labels['least']} to {labels['largest']}; "
            f"the model has {metrics['classes']} classes"
        )
        found.append(f"label offset: {offset['value']} ({offset['why']})")
        if metrics["confusions"]:
            pairs = [
                f"{' / '.join(_short(n) for n in c['names'])} ({c['times']})"
                for c in metrics["confusions"][:5]
            ]
            counted = " (numbers of the model)" if offset["value"] and not self.names else ""
            found.append(f"most confused{counted}: {', '.join(pairs)}")
        worst = [w for w in metrics["worst_classes"][:5] if w["samples"] > 1]
        if worst:
            shares = [f"{_short(w['name'])} ({w['right']} of {w['samples']})" for w in worst]
            found.append(f"worst classes: {', '.join(shares)}")
        return found + ([f"warning: {metrics['warning']}"] if "warning" in metrics else [])

    # -- two models -----------------------------------------------------------------------------

    def compare(
        self, samples: Sequence[Sample], ours: Sequence[Prediction], theirs: Sequence[Prediction]
    ) -> Metrics:
        tops = [np.stack([p["top"] for p in side]) for side in (ours, theirs)]
        offsets = [
            self._offset_of(samples, side, best)
            for side, best in zip((ours, theirs), tops, strict=True)
        ]
        truth = np.array([int(s.truth) for s in samples])
        # Classes in the labels' counting: models of 1000 and of 1001 classes can be compared.
        own, other = (best - o for best, o in zip(tops, offsets, strict=True))
        found: Metrics = {
            f"top{k}": paired(
                *((side[:, :k] == truth[:, None]).any(axis=1) for side in (own, other))
            )
            for k in (1, 5)
            if k <= min(own.shape[1], other.shape[1])
        }
        same = int((own[:, 0] == other[:, 0]).sum())
        found["agreement"] = {
            "same_top1": same,
            "value": same / len(samples),
            "interval": list(wilson(same, len(samples))),
        }
        found["disagreements"] = self._disagreements(samples, truth, own[:, 0], other[:, 0])
        if all("scores" in p for p in (*ours[:1], *theirs[:1])):
            a, b = _aligned(ours, offsets[0]), _aligned(theirs, offsets[1])
            shared = min(a.shape[1], b.shape[1])
            found["scores"] = score_distance(b[:, :shared], a[:, :shared])
        return found

    def _disagreements(
        self, samples: Sequence[Sample], truth: Array, own: Array, other: Array
    ) -> list[dict[str, Any]]:
        """The first samples on which the best classes differ, in the labels' counting, with what
        is needed to show them: the file, and the row of a file that holds many."""
        places = np.flatnonzero(own != other)[:SHOWN]
        return [
            {
                "id": samples[i].id,
                "file": str(samples[i].path or ""),
                "row": samples[i].data if isinstance(samples[i].data, int) else None,
                "truth": int(truth[i]),
                "ours": int(own[i]),
                "theirs": int(other[i]),
            }
            for i in places.tolist()
        ]

    def _offset_of(self, samples: Sequence[Sample], side: Sequence[Prediction], best: Array) -> int:
        """Return a model's offset. Its classes are counted by its scores, where these were kept."""
        if self.offset == AUTO and "scores" in side[0] and len(side[0]["scores"]) != self.classes:
            twin = type(self)(
                **{k: v for k, v in self.settings().items() if k != "model_output_labels"}
            )
            twin.classes = len(side[0]["scores"])
            return int(twin.found_offset(samples, best)["value"])
        return int(self.found_offset(samples, best)["value"])

    def compared_lines(self, compared: Metrics) -> list[str]:
        found = []
        for name in (n for n in ("top1", "top5") if n in compared):
            pair, test = compared[name]["difference"], compared[name]["mcnemar"]
            right = compared[name]["right"]
            found.append(
                f"{name} difference: {100 * pair['value']:+.2f} points, 95 % interval "
                f"{100 * pair['low']:+.2f} to {100 * pair['high']:+.2f} (right here only "
                f"{right['only_ours']}, there only {right['only_theirs']}; McNemar's p = "
                f"{test['exact']:.3g}, mid-p {test['mid']:.3g})"
            )
        agree = compared["agreement"]
        low, high = agree["interval"]
        found.append(
            f"same first class: {agree['value']:.2%} ({agree['same_top1']} of "
            f"{compared['samples']}), 95 % interval {low:.2%} to {high:.2%}"
        )
        if "scores" in compared:
            far = compared["scores"]
            found.append(
                f"{far['snr_of']}: SNR {far['snr_db']:.1f} dB; KL divergence of "
                f"{far['kl_of']}: mean {far['kl_mean']:.3g}, p95 {far['kl_p95']:.3g}, max "
                f"{far['kl_max']:.3g} nats"
            )
        return found


def _aligned(side: Sequence[Prediction], offset: int) -> Array:
    """Scores [samples, classes] from the labels' class 0 on: the background class falls away."""
    scores = np.stack([p["scores"] for p in side])
    return scores[:, max(offset, 0) :]


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(
            f"'{text}' is not a number", where="--label-offset", fix="give 0, 1 or -1, or auto"
        ) from None


def _short(name: str) -> str:
    return name.split(",")[0]
