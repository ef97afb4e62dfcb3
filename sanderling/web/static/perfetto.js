// Hands a trace to Perfetto's page in a new tab, when its button is clicked: asks that page until it
// answers, and then gives it the file. Nothing is sent to a server: the page keeps what it is given.
"use strict";

const PERFETTO = "https://ui.perfetto.dev";

async function hand(button) {
  const page = window.open(PERFETTO); // at once: later the browser would take it for a pop-up
  if (page === null) return;
  const answer = await fetch(button.dataset.perfetto);
  const given = { buffer: await answer.arrayBuffer(), title: button.dataset.name,
                  fileName: button.dataset.name };
  const asking = setInterval(() => (page.closed ? stop() : page.postMessage("PING", "*")), 100);
  const stop = () => {
    clearInterval(asking);
    removeEventListener("message", heard);
  };
  const heard = event => {
    if (event.source !== page || event.origin !== PERFETTO || event.data !== "PONG") return;
    stop();
    page.postMessage({ perfetto: given }, PERFETTO);
  };
  addEventListener("message", heard);
}

document.querySelectorAll("[data-perfetto]").forEach(button => {
  button.hidden = false;
  button.addEventListener("click", () => hand(button));
});
