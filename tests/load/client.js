// A client of the league pages as R4.37 to R4.39 describe it: it keeps what it was given, sends its tag with every poll, and
// comes again when it is told that a page is being made.
//
// Law: a 304 without a copy, a 200 without a tag, and a body whose tag was seen with other bytes are failures, not answers.

import http from "k6/http";
import { check, sleep } from "k6";
import { Counter, Rate, Trend } from "k6/metrics";

export const BASE = __ENV.BASE_URL || "http://127.0.0.1:8080";
export const SEASON = __ENV.SEASON || "2018-19_en.1";
export const PREWARM = __ENV.PREWARM === "1";
const TOKEN = __ENV.CACHE_PREWARM_TOKEN || "";

const league = (page) => `/api/league/${encodeURIComponent(SEASON)}/${page}`;
export const PAGES = {
  table: league("table"),
  schedule: league("schedule"),
  results: league("results"),
  stats: league("stats"),
  bracket: league("bracket"),
  live: "/api/matches/live",
};

// What R4.40 asks to be watched, by what a client sees.
export const unchanged = new Rate("unchanged"); // 304 among all answers with content to show
export const sent = new Counter("sent"); // 200
export const pending = new Counter("pending"); // 202: being made, come again
export const refused = new Counter("refused"); // 429
export const unavailable = new Counter("unavailable"); // 503
export const showMs = new Trend("show_ms", true); // from the first request for a page to something to show
export const notModifiedMs = new Trend("not_modified_ms", true);
export const sentMs = new Trend("sent_ms", true);

// 202 is an answer; 429 and 503 are not expected in these scenarios and count as failed.
http.setResponseCallback(http.expectedStatuses(200, 202, 304));

// A client gives up on a page after this many invitations to come again.
const TRIES_MAX = 15;

// What a poll of a page sends: the tag of the copy that is held, if one is.
function request(copies, page) {
  const headers = { "Accept-Encoding": "gzip" };
  if (copies[page] !== undefined) headers["If-None-Match"] = copies[page].etag;
  return ["GET", BASE + PAGES[page], null, { headers, tags: { page } }];
}

// Polls a page once; true when there is something to show.
export function poll(copies, page) {
  return accept(copies, page, http.request(...request(copies, page)));
}

// Takes in an answer.
function accept(copies, page, answer) {
  const held = copies[page];
  const etag = answer.headers["Etag"] || answer.headers["ETag"];
  if (answer.status === 304) {
    unchanged.add(true);
    notModifiedMs.add(answer.timings.duration);
    return check(answer, {
      "a 304 is for the copy that is held": () => held !== undefined && etag === held.etag,
    });
  }
  if (answer.status === 200) {
    unchanged.add(false);
    sent.add(1);
    sentMs.add(answer.timings.duration);
    const version = Number(answer.headers["X-Resource-Version"]);
    check(answer, {
      "a page has a tag and a version": () => etag !== undefined && version > 0,
      "a version never goes back": () => held === undefined || version >= held.version,
      "one tag never names two bodies": () => held === undefined || etag !== held.etag || answer.body.length === held.length,
    });
    copies[page] = { etag, version, length: answer.body.length };
    return true;
  }
  if (answer.status === 202) {
    pending.add(1);
    check(answer, { "a 202 says when to come again and has no tag": () => answer.headers["Retry-After"] !== undefined && !etag });
  } else if (answer.status === 429) refused.add(1);
  else if (answer.status === 503) unavailable.add(1);
  return copies[page] !== undefined;
}

// Asks for pages at once until each has something to show, coming again a second later for those that are still being made.
export function show(copies, pages) {
  const started = Date.now();
  let open = pages;
  for (let tries = 0; open.length > 0 && tries < TRIES_MAX; tries++) {
    if (tries > 0) sleep(1);
    const answers = http.batch(open.map((page) => request(copies, page)));
    open = open.filter((page, place) => {
      const shown = accept(copies, page, answers[place]);
      if (shown) showMs.add(Date.now() - started, { page });
      return !shown;
    });
  }
  check(open, { "all pages are shown in the end": (left) => left.length === 0 });
}

// Warms the caches as the external cron does before matches, and leaves the workers the time they would have.
export function prewarm() {
  if (!PREWARM) return;
  const headers = { "x-prewarm-token": TOKEN, "Content-Type": "application/json" };
  const answer = http.post(`${BASE}/api/cache/prewarm`, null, {
    headers,
    responseCallback: http.expectedStatuses(202),
    tags: { page: "prewarm" },
  });
  if (!check(answer, { "the prewarm is accepted": (told) => told.status === 202 })) {
    throw new Error(`POST /api/cache/prewarm answered ${answer.status}: ${answer.body}`);
  }
  sleep(5);
}
