"""Pages of jobs: the forms, the list, and one job as it goes on."""

from __future__ import annotations

import time

from .job_forms import FORMS, Field, Form
from .jobs import Job
from .layout import Page
from .markup import Markup, facts, heading, link, note, paragraph, table, tag, text
from .screens import Site, missing
from .view import plural

MOST_OPTIONS = 2000


def jobs(site: Site, problem: str = "") -> Page:
    if site.jobs is None:
        return Page("Jobs", "jobs", [paragraph("This page was started to look only."), note(HOW)])
    rows = [
        [link(site.at(f"jobs/{j.id}"), f"{j.id}"), j.command.verb, j.shown, j.state, _clock(j)]
        for j in sorted(site.jobs.all.values(), key=lambda j: -j.id)[:100]
    ]
    said = paragraph(problem, class_="problem", role="alert") if problem else Markup("")
    return Page(
        "Jobs",
        "jobs",
        [
            said,
            table("Jobs, newest first", [">", "verb", "command", "state", "begun"], rows),
            note("Jobs run one after the other: measurements disturb each other."),
            *(_form(site, verb, form) for verb, form in FORMS.items()),
        ],
        400 if problem else 200,
    )


HOW = "To start bench, diff, quantize and eval from here: sanderling serve FOLDER --run"


def _clock(job: Job) -> str:
    return time.strftime("%H:%M:%S", time.localtime(job.begun))


def _form(site: Site, verb: str, form: Form) -> Markup:
    name = f"form-{verb}"
    fields = [_field(site, verb, f) for f in form.fields]
    return tag(
        "form",
        heading(form.title, 2, id=name),
        tag("div", *fields, class_="fields"),
        tag("button", f"Start {verb}"),
        method="post",
        action=site.at(f"jobs/start/{verb}"),
        class_="job",
        aria_labelledby=name,
    )


def _field(site: Site, verb: str, field: Field) -> Markup:
    name = f"{verb}-{field.name}"
    hint = f"{name}-help" if field.help else None
    if field.least is not None:
        control = tag(
            "input",
            type="number",
            name=field.name,
            id=name,
            value=field.default,
            step="any",
            min=f"{field.least:g}",
            max=f"{field.most:g}",
            aria_describedby=hint,
        )
    else:
        control = _select(site, field, name, hint)
    help_ = tag("small", field.help, id=hint) if field.help else None
    return tag("span", tag("label", field.label, for_=name), control, help_, class_="field")


def _select(site: Site, field: Field, name: str, hint: str | None) -> Markup:
    options = [
        tag("option", text(o, 80), value=o, selected=o == field.default)
        for o in field.options(site.folder)[:MOST_OPTIONS]
    ]
    empty = [] if field.is_needed and options else [tag("option", "none", value="")]
    return tag(
        "select",
        *empty,
        *options,
        name=field.name,
        id=name,
        aria_describedby=hint,
        required=field.is_needed,
    )


def job(site: Site, number: int) -> Page:
    """What the job says comes as events (static/jobs.js); without scripts, as it was now."""
    found = site.jobs.all.get(number) if site.jobs is not None else None
    if found is None:
        raise missing("job")
    told = found.told(0)
    state = tag("strong", found.state, id="job-state")
    share = tag("progress", id="job-share", max="1", value=found.share, aria_label="Progress")
    cancel = tag(
        "form",
        tag("button", "Cancel", id="job-cancel", disabled=found.is_over),
        method="post",
        action=site.at(f"jobs/{number}/cancel"),
    )
    return Page(
        f"Job {number}: {found.command.verb}",
        "jobs",
        [
            facts([("command", tag("code", found.shown)), ("record", found.command.record.name)]),
            paragraph("State: ", state, " ", share, role="status", aria_live="polite"),
            paragraph(*_record(site, found), id="job-record", aria_live="polite"),
            cancel,
            heading("What it says"),
            tag(
                "pre",
                _lines(told["lines"]),
                id="job-lines",
                class_="wide",
                tabindex=0,
                role="log",
                data_events=site.at(f"jobs/{number}/events"),
                data_seen=str(told["seen"]),
                data_over="yes" if found.is_over else "no",
            ),
            heading("Result"),
            tag("pre", _lines(found.result), id="job-result", class_="wide", tabindex=0),
            note(plural(site.jobs.count if site.jobs else 0, "job") + " since the start"),
        ],
    )


def _lines(lines: list[str]) -> Markup:
    return Markup("\n".join(map(text, lines)))


def _record(site: Site, job: Job) -> list[object]:
    """A link to what was found, when it is there."""
    if job.state != "done":
        return []
    site.index.refresh(at_once=True)
    row = site.index.by_path(job.command.record.name)
    return [link(site.at(f"record/{row.id}"), "See the record")] if row else []
