"use strict";
// A plain script, run before the first paint, so that a chosen theme never flashes in the other one.
(() => {
  const ORDER = ["system", "light", "dark"];
  const NAMES = { system: "as the system", light: "light", dark: "dark" };
  const KEY = "draftwood.theme";

  function stored() {
    try {
      const theme = localStorage.getItem(KEY);
      return ORDER.includes(theme) ? theme : "system";
    } catch {
      return "system"; // storage can be forbidden; the page works without it
    }
  }

  let theme = stored();

  function apply() {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }

  function label(button) {
    const next = NAMES[ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length]];
    button.setAttribute("aria-label", `Theme: ${NAMES[theme]}. Change to ${next}`);
    button.title = `Theme: ${NAMES[theme]}`;
    button.querySelector("use").setAttribute("href", `#i-${theme}`);
  }

  apply();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    label(button);
    button.addEventListener("click", () => {
      theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // kept for this page alone
      }
      apply();
      label(button);
    });
  });
})();
