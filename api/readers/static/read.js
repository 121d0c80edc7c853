/** What makes a readers' page live: each part of it is watched, and the tabs of a season are loaded when they are opened. */

import { Highwater } from "./highwater.js";

const body = document.body;
const client = new Highwater({ prefix: "highwater:read:", namespace: body.dataset.reader ?? "" });
const words = JSON.parse(body.dataset.words); // in the language of the page
const status = document.querySelector("[data-status]");
const watches = new Map();
const failing = new Set();

function say(part, isUpdating) {
  if (isUpdating) failing.add(part);
  else failing.delete(part);
  const text = failing.size > 0 ? words.updating : "";
  if (status !== null && status.textContent !== text) status.textContent = text;
}

function counted(text, number) {
  return text.replace("{number}", String(number));
}

/** Says of each cluster what is new since the last visit, as `feed_pages.mark` does on the server. */
function mark(part) {
  const { since } = part.closest("[data-since]")?.dataset ?? {};
  if (since === undefined) return;
  const isNew = (version) => Number(version) > Number(since);
  let news = 0;
  for (const one of part.querySelectorAll("[data-changed]")) {
    const { size, arrived } = one.dataset;
    const pairs = arrived.split(" ").filter(Boolean).map((pair) => pair.split(":"));
    const count = pairs.reduce((sum, [version, number]) => sum + (isNew(version) ? Number(number) : 0), 0);
    const isChanged = isNew(one.dataset.changed);
    const said = count === Number(size) ? words.new : count > 0 ? counted(words.newOnes, count) : words.changed;
    one.querySelector("[data-new]").textContent = isChanged ? said : "";
    news += count > 0 ? 1 : 0;
  }
  const told = part.querySelector("[data-news]");
  if (told !== null) told.textContent = news > 0 ? counted(words.news, news) : "";
}

/** Replaces the content of a part; focus stays on what has the same address or id. */
function fill(part, html) {
  const active = document.activeElement;
  const place = part.contains(active) ? (active.id ? `#${CSS.escape(active.id)}` : active.getAttribute("href")) : null;
  const open = new Set([...part.querySelectorAll("details[open][id]")].map((one) => one.id));
  part.innerHTML = html;
  mark(part);
  for (const id of open) part.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
  if (place !== null) {
    const same = place.startsWith("#") ? place : `[href="${CSS.escape(place)}"]`;
    part.querySelector(same)?.focus({ preventScroll: true });
  }
}

/** The detail of a problem as a sentence, as `frame.sentence` makes it on the server. */
function sentence(detail) {
  const begun = /^[a-z]+( |$)/.test(detail) ? detail[0].toUpperCase() + detail.slice(1) : detail;
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

function show(part, state) {
  say(part, state.updating);
  if (state.value !== null) {
    if (part.dataset.etag !== state.etag) fill(part, state.value);
    part.dataset.etag = state.etag;
    part.dataset.version = state.version;
    part.removeAttribute("aria-busy");
  } else if (state.problem !== null && !state.updating) {
    part.removeAttribute("aria-busy");
    delete part.dataset.etag;
    const note = document.createElement("p");
    note.className = "note";
    const isSignedOut = state.problem.status === 401;
    note.textContent = isSignedOut ? words.signedOut : sentence(state.problem.detail ?? state.problem.title);
    if (!isSignedOut) note.lang = "en"; // as the API says it
    part.replaceChildren(note);
  }
}

function watch(part) {
  const path = part.dataset.part;
  const { etag, version } = part.dataset;
  if (etag) {
    // Shown as it came with the page, unless this browser has seen a newer version.
    const state = client.seed(path, { etag, version: Number(version), value: part.innerHTML });
    if (state.etag !== etag) show(part, state);
  }
  const keys = (part.dataset.keys ?? "").split("\n").filter(Boolean);
  const live = (state) => typeof state.value === "string" && state.value.includes("data-live");
  watches.set(part, client.watch(path, (state) => show(part, state), { live, keys }));
}

/** Shows another tab of the season in the same place. */
function open(link) {
  const part = document.querySelector("#tab");
  if (part === null) return;
  watches.get(part)?.close();
  say(part, false);
  for (const one of document.querySelectorAll("[data-tab]")) one.removeAttribute("aria-current");
  link.setAttribute("aria-current", "page");
  document.title = link.dataset.title;
  part.dataset.part = link.dataset.tab;
  part.dataset.keys = link.dataset.keys;
  delete part.dataset.etag;
  part.setAttribute("aria-busy", "true");
  part.replaceChildren(Object.assign(document.createElement("p"), { className: "note", textContent: words.loading }));
  watch(part);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("[data-tab]");
  if (!link || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  if (link.getAttribute("aria-current") !== "page") {
    history.pushState(null, "", link.getAttribute("href"));
    open(link);
  }
});

addEventListener("popstate", () => {
  const here = [...document.querySelectorAll("[data-tab]")].find((one) => one.pathname === location.pathname);
  if (here) open(here);
});

document.querySelector("[data-plain]")?.remove(); // it says what a page without a script does not do
for (const part of document.querySelectorAll("[data-part]")) watch(part);
if (body.dataset.changes) client.connect(new URL(body.dataset.changes, location.href.replace(/^http/, "ws")).href);
