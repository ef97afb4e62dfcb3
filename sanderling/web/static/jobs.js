// Follows a job: what it says, how far it is, and its end. What is shown is set as text, never HTML.
"use strict";

function follow(log) {
  const state = document.getElementById("job-state");
  const share = document.getElementById("job-share");
  const source = new EventSource(`${log.dataset.events}?seen=${log.dataset.seen}`);
  source.onmessage = event => {
    const told = JSON.parse(event.data);
    if (state.textContent !== told.state) state.textContent = told.state;
    if (told.share !== null) share.value = told.share;
    if (told.lines.length) {
      const isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
      log.textContent += (log.textContent ? "\n" : "") + told.lines.join("\n");
      if (isAtEnd) log.scrollTop = log.scrollHeight;
    }
    if (["done", "failed", "cancelled"].includes(told.state)) {
      source.close();
      document.getElementById("job-result").textContent = told.result.join("\n");
      document.getElementById("job-cancel").disabled = true;
      if (told.state === "done") location.reload(); // the record has a link then
    }
  };
}

const log = document.getElementById("job-lines");
if (log && log.dataset.over === "no") follow(log);
