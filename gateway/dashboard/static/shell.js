// What the frame does beyond links and forms. Every page works without it, but for charts.
"use strict";

const menu = document.querySelector(".menu-button");
const pages = document.querySelector("#pages");
if (menu && pages) {
  const show = (open) => {
    pages.classList.toggle("open", open);
    menu.setAttribute("aria-expanded", String(open));
  };
  menu.addEventListener("click", () => show(!pages.classList.contains("open")));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && pages.classList.contains("open")) { show(false); menu.focus(); }
  });
}

// The viewer's own zone is one choice away.
for (const select of document.querySelectorAll("select[data-zones]")) {
  const mine = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (mine && ![...select.options].some((option) => option.value === mine)) select.add(new Option(mine));
}
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submits]")) event.target.form.requestSubmit();
});

// Sheets close like menus do: outside, and by Escape.
const sheets = () => document.querySelectorAll("details.person[open], details.days[open]");
document.addEventListener("click", (event) => {
  for (const each of sheets()) if (!each.contains(event.target)) each.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const each of sheets()) { each.open = false; each.querySelector("summary").focus(); }
});

document.addEventListener("submit", (event) => {
  const asks = event.submitter?.dataset.asks;
  if (asks && !window.confirm(asks)) event.preventDefault();
});
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copies]");
  if (!button) return;
  await navigator.clipboard.writeText(document.querySelector(button.dataset.copies).textContent.trim());
  button.querySelector("span").textContent = "Copied";
});

// What is live asks for itself again while it is looked at; a box stops it.
const watches = document.querySelector("[data-watches]");
if (watches) {
  setInterval(() => {
    if (watches.checked && !document.hidden) document.querySelector("#live").dispatchEvent(new Event("watch"));
  }, 3000);
}
