"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const views = new Map();
  let shown = -1;
  let turn = 0;

  // Vega-Lite measures a container only for charts that are not composed.
  const sized = (part, width) => {
    if (Array.isArray(part)) return part.map((one) => sized(one, width));
    if (part === null || typeof part !== "object") return part;
    const copy = {};
    for (const [key, value] of Object.entries(part)) {
      copy[key] = key === "width" && value === "container" ? width
        : key === "values" ? value : sized(value, width);
    }
    return copy;
  };

  const draw = async (name, spec) => {
    const place = document.getElementById(`chart-${name}`);
    const wide = Math.max(260, place.clientWidth - (spec.vconcat || spec.hconcat ? 110 : 0));
    const chart = spec.vconcat ? sized(spec, wide) : { ...spec, width: wide,
      autosize: { type: "fit-x", contains: "padding" } };
    const old = views.get(name);
    if (old) old.finalize();
    const result = await window.drawChart(place, chart, {
      mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false,
      config: data.look, tooltip: { disableDefaultStyle: true },
    });
    views.set(name, result.view);
    const picture = place.querySelector("svg");
    if (picture) {
      picture.setAttribute("aria-hidden", "true");
      picture.setAttribute("focusable", "false");
    }
    return result.view;
  };

  const show = async (number, moveTo) => {
    const plan = data.plans[number];
    if (!plan) return;
    shown = number;
    const mine = ++turn;
    document.getElementById("plan-label").textContent = plan.label;
    const facts = document.getElementById("plan-facts");
    facts.replaceChildren(...plan.facts.map(([name, value]) => {
      const group = document.createElement("div");
      const term = document.createElement("dt");
      const text = document.createElement("dd");
      term.textContent = name;
      text.textContent = value;
      group.append(term, text);
      return group;
    }));
    const link = document.getElementById("plan-download");
    link.hidden = plan.content === null;
    if (plan.content !== null) {
      link.href = `data:application/json;charset=utf-8,${encodeURIComponent(plan.content)}`;
      link.download = "plan.json";
    }
    for (const button of document.querySelectorAll("button[data-plan]")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.plan) === number));
    }
    const place = document.getElementById("chart-schedule");
    document.getElementById("schedule-caption").textContent = plan.chart ? plan.chart.caption : plan.note;
    place.parentElement.querySelector(".zoom").hidden = !plan.chart;
    if (plan.chart) {
      await draw("schedule", plan.chart.spec);
    } else {
      const old = views.get("schedule");
      if (old) old.finalize();
      views.delete("schedule");
      place.replaceChildren();
    }
    if (mine !== turn) return;
    place.dataset.plan = String(number);
    const front = views.get("front");
    if (front) front.signal("chosen", number).run();
    if (moveTo) document.getElementById("chosen").scrollIntoView({ block: "nearest" });
  };

  // Moves in the coordinates of the picture, so that it works on any scale.
  const zoom = (name, how) => {
    const view = views.get(name);
    if (!view) return;
    for (const [axis, signal] of [["x", "zoom_x"], ["y", "zoom_y"]]) {
      if (!signals(view).has(signal)) continue;
      const scale = scaleOf(view, axis);
      if (!scale) continue;
      const [low, high] = scale.range();
      const length = high - low;
      const factor = how === "in" ? 0.5 : how === "out" ? 2 : 1;
      const aside = axis === "x" ? (how === "left" ? -0.25 : how === "right" ? 0.25 : 0) * length : 0;
      const middle = low + length / 2 + aside;
      view.signal(signal, how === "reset" ? null
        : [scale.invert(middle - factor * length / 2), scale.invert(middle + factor * length / 2)]);
    }
    view.run();
  };

  const signals = (view) => new Set(Object.keys(view.getState().signals));
  const scaleOf = (view, axis) => {
    for (const name of [axis, `concat_0_${axis}`]) {
      try {
        return view.scale(name);
      } catch {
        continue;
      }
    }
    return null;
  };

  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest("button") : null;
    if (button && button.dataset.plan) show(Number(button.dataset.plan), true);
    if (button && button.dataset.zoom) zoom(button.dataset.chart, button.dataset.zoom);
  });
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });

  const start = async () => {
    for (const [name, spec] of Object.entries(data.charts)) {
      const view = await draw(name, spec);
      view.addEventListener("click", (_, item) => {
        const number = item && item.datum ? item.datum.plan : undefined;
        if (typeof number === "number") show(number, false);
      });
    }
    const plans = document.getElementById("plans");
    if (plans) await show(Number(plans.dataset.first), false);
    document.documentElement.dataset.ready = "true";
  };
  start();
})();
