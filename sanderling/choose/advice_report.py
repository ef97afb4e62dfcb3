"""What `advise` found as text, Markdown and a page."""

from __future__ import annotations

from collections.abc import Sequence

from ..glyphs import clean_lines
from ..pages import heading, html_table, page, paragraph
from ..tables import facts, markdown, table
from .advice import Advised, LookedAt

ADVICE = ["advice", "gain", "|answers", "|evidence"]
LOOKED_AT = ["looked at", "gain", "|because"]
NOTED = ["noted", "|what", "|why"]


def summary(found: Advised) -> str:
    """What it is about, and the verdict."""
    return facts(
        [
            ("model", found.model),
            ("", found.about),
            ("for", found.target.title),
            ("goal", found.goal),
            ("verdict", found.verdict),
        ]
    )


def advice_rows(found: Advised) -> list[list[str]]:
    return [[a.name, a.text, a.cost, a.evidence] for a in found.advice]


def looked_at_rows(rows: Sequence[LookedAt]) -> list[list[str]]:
    return [[r.name, "" if r.gain is None else str(r.gain), r.why] for r in rows]


def noted_rows(found: Advised) -> list[list[str]]:
    return [[n.kind, n.what, n.why] for n in found.noted]


def commands(found: Advised) -> list[str]:
    """To run next, the largest gain first."""
    return [a.command for a in found.advice]


def as_text(found: Advised) -> str:
    parts = [summary(found)]
    if found.advice:
        parts += [table(ADVICE, advice_rows(found))]
        parts += ["run next:\n" + "\n".join(f"  $ {c}" for c in commands(found))]
    if found.wants:
        listed = [f"{table(['may gain', *LOOKED_AT[1:]], looked_at_rows(found.wants))}"]
        listed += [f"  $ {w.command}" for w in found.wants]
        parts.append("\n".join(listed))
    parts.append(table(LOOKED_AT, looked_at_rows(found.looked_at)))
    parts.append(table(NOTED, noted_rows(found)))
    return clean_lines("\n\n".join(filter(None, parts)))


def as_markdown(found: Advised) -> str:
    parts = [f"# Advice for `{found.model}`", f"{found.about}; for {found.target.title}"]
    parts.append(f"Goal: {found.goal}. **{found.verdict}**")
    if found.advice:
        parts.append(markdown(_plain(ADVICE), advice_rows(found)))
        parts.append("```console\n" + "\n".join(f"$ {c}" for c in commands(found)) + "\n```")
    for heads, rows in _tables(found):
        parts.append(markdown(_plain(heads), rows))
    return "\n\n".join(parts) + "\n"


def _tables(found: Advised) -> list[tuple[list[str], list[list[str]]]]:
    made = [
        (["may gain", *LOOKED_AT[1:]], looked_at_rows(found.wants)),
        (LOOKED_AT, looked_at_rows(found.looked_at)),
        (NOTED, noted_rows(found)),
    ]
    return [(heads, rows) for heads, rows in made if rows]


def _plain(columns: Sequence[str]) -> list[str]:
    return [c.lstrip("|") for c in columns]


def as_page(found: Advised) -> str:
    parts = [paragraph(f"{found.model}: {found.about}; for {found.target.title}")]
    parts += [paragraph(f"Goal: {found.goal}. {found.verdict}.")]
    if found.advice:
        rows = [[*row, a.command] for row, a in zip(advice_rows(found), found.advice, strict=True)]
        parts += [heading("Advice"), html_table([*_plain(ADVICE), "run next"], rows)]
    for heads, rows in _tables(found):
        parts += [heading(heads[0].capitalize()), html_table(_plain(heads), rows)]
    return page("sanderling advise", parts)
