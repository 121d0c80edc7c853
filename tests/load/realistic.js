// Realistic load (R4.42): people follow a match day. Six in ten watch the live page, every 3 to 5 s; all look at one tab of the
// league, every 10 to 30 s, mostly the table; one in ten hides the tab and polls once a minute (R4.37). Each sends its tag.
//
// A virtual user of k6 stands for CLIENTS_PER_VU people, one request at a time, so that a machine with two cores can play 5,000 of
// them beside the product. People arrive over 15 s and stay.

import { sleep } from "k6";
import { poll, prewarm, show } from "./client.js";

const VUS = Number(__ENV.VUS || 400);
const CLIENTS_PER_VU = Number(__ENV.CLIENTS_PER_VU || 12);
const TABS = ["table", "table", "table", "table", "table", "results", "results", "schedule", "schedule", "stats"];

export const options = {
  scenarios: {
    match_day: {
      executor: "ramping-vus",
      startVUs: 0,
      stages: [
        { duration: "15s", target: VUS },
        { duration: "20s", target: VUS },
      ],
      gracefulStop: "3s",
      gracefulRampDown: "3s",
    },
  },
  thresholds: {
    checks: ["rate>0.999"],
    http_req_failed: ["rate<0.001"],
    http_req_duration: ["p(95)<1000"], // the upgrade signal of R4.41
    // Apart in the summary: a live page is counted per address, which the others are not.
    "http_req_duration{page:live}": ["p(95)<1000"],
    "http_req_duration{page:table}": ["p(95)<1000"],
    not_modified_ms: ["p(95)<250"],
    show_ms: ["p(95)<2500"],
    unchanged: ["rate>0.2"],
  },
  summaryTrendStats: ["min", "med", "avg", "p(90)", "p(95)", "p(99)", "max"],
};

export const setup = prewarm;

const between = (least, most) => 1000 * (least + Math.random() * (most - least));

// The next look of each of a client's open pages.
function arrive(now) {
  const tab = TABS[Math.floor(Math.random() * TABS.length)];
  const isHidden = Math.random() < 0.1;
  const pace = isHidden ? [60, 60] : [10, 30];
  const client = { copies: {}, looks: [{ page: tab, pace, at: now + between(0, 3) }] };
  if (!isHidden && Math.random() < 0.6 / 0.9) client.looks.push({ page: "live", pace: [3, 5], at: now + between(0, 3) });
  return client;
}

let clients = null;

export default function () {
  const now = Date.now();
  if (clients === null) clients = Array.from({ length: CLIENTS_PER_VU }, () => arrive(now));
  let next = null;
  for (const client of clients) {
    for (const look of client.looks) {
      if (next === null || look.at < next.look.at) next = { client, look };
    }
  }
  // A look that comes late because another was waited for is made at once; the next one is counted from now.
  if (next.look.at > now) sleep((next.look.at - now) / 1000);
  if (next.client.copies[next.look.page] === undefined) show(next.client.copies, [next.look.page]);
  else poll(next.client.copies, next.look.page);
  next.look.at = Date.now() + between(...next.look.pace);
}
