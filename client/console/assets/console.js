// Keeps an open page up to date: events say that there may be newer data, htmx fetches the part of the page, uPlot draws the pictures.
"use strict";
(() => {
  const live = document.getElementById("live");
  const COLOURS = ["#1976d2", "#ef6c00", "#2e7d32", "#ad1457", "#6a1b9a", "#00838f", "#5d4037"];
  let source = null;
  let paused = false;
  let focused = null;
  let opened = new Set();

  const draw = (root) => {
    const style = getComputedStyle(document.body);
    const axis = { stroke: style.color, grid: { stroke: style.getPropertyValue("--border"), width: 0.3 } };
    for (const place of root.querySelectorAll("[data-chart]")) {
      const { labels, data } = JSON.parse(place.dataset.chart);
      if (data[0].length < 2) continue;
      place.replaceChildren();
      const lines = labels.map((label, at) => ({ label, stroke: COLOURS[at % COLOURS.length], width: 2, points: { show: false } }));
      const size = { width: Math.max(240, place.clientWidth), height: 180 };
      const tzDate = (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC");
      new uPlot({ ...size, tzDate, series: [{ label: "UTC" }, ...lines], axes: [axis, { ...axis, size: 70 }], cursor: { drag: { x: false } } }, data, place);
    }
  };

  const listen = () => {
    source?.close();
    source = null;
    if (!live || !live.dataset.updates || paused || document.hidden) return;
    source = new EventSource("/events");
    source.addEventListener("newer", () => htmx.trigger(live, "newer"));
    source.addEventListener("error", () => {
      // A stream that was refused is not opened again by itself. If the session has ended, the answer to this request says so.
      if (source?.readyState !== EventSource.CLOSED) return;
      htmx.trigger(live, "newer");
      setTimeout(listen, 30_000);
    });
  };

  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target !== live) return;
    focused = live.contains(document.activeElement) ? document.activeElement : null;
    opened = new Set([...live.querySelectorAll("details[open]")].map((one) => one.id));
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target !== live) return;
    for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
    if (focused) {
      const same = (one) => (focused.id ? one.id === focused.id : one.getAttribute("href") === focused.getAttribute("href"));
      [...live.querySelectorAll("a, button, input, summary")].find(same)?.focus({ preventScroll: true });
    }
    draw(live);
  });
  const button = document.getElementById("pause");
  button?.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    listen();
  });
  document.addEventListener("visibilitychange", listen);
  addEventListener("pagehide", () => source?.close());
  draw(document);
  listen();
})();
