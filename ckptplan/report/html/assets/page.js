"use strict";
(() => {
  const plans = [...document.querySelectorAll("article[id^='plan-']")];

  // Shows the plan that a link names, as "#plan-3", and marks every link to it.
  const show = (link) => {
    const chosen = plans.find((plan) => `#${plan.id}` === link);
    if (!chosen) return false;
    for (const plan of plans) plan.hidden = plan !== chosen;
    for (const anchor of document.querySelectorAll("a[href^='#plan-']")) {
      if (anchor.getAttribute("href") === link) anchor.setAttribute("aria-current", "true");
      else anchor.removeAttribute("aria-current");
    }
    return true;
  };

  document.addEventListener("click", (event) => {
    const anchor = event.target instanceof Element ? event.target.closest("a[href^='#plan-']") : null;
    if (!anchor || !show(anchor.getAttribute("href"))) return;
    event.preventDefault();
    // A reader who chose from the picture sees both; from the table, the plan comes into sight.
    const plan = document.querySelector("article:not([hidden])");
    if (anchor.closest("table")) plan.scrollIntoView({ block: "nearest" });
  });
  window.addEventListener("hashchange", () => show(location.hash));
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });

  const first = plans.find((plan) => !plan.hidden);
  if (!show(location.hash) && first) show(`#${first.id}`);
  document.documentElement.dataset.ready = "true";
})();
