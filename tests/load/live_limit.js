// The limit of live pages (R4.36): an address has 15 requests in 10 s, 304s among them; the next is answered 429 with Retry-After,
// and pages that are not live are not limited. Run against an API with HIGHWATER_LIVE_REQUESTS_MAX unset.

import http from "k6/http";
import { check } from "k6";
import { BASE, PAGES } from "./client.js";

export const options = {
  vus: 1,
  iterations: 1,
  thresholds: { checks: ["rate==1"] },
};

export default function () {
  http.setResponseCallback(http.expectedStatuses(200, 202, 304, 429));
  let etag = "";
  for (let request = 1; request <= 20; request++) {
    const answer = http.get(BASE + PAGES.live, { headers: etag ? { "If-None-Match": etag } : {} });
    etag = answer.headers["Etag"] || etag;
    if (request <= 15) check(answer, { "the first 15 are answered": (told) => told.status === 200 || told.status === 304 });
    else {
      check(answer, {
        "the next are refused": (told) => told.status === 429,
        "and told when to come again": (told) => Number(told.headers["Retry-After"]) >= 1,
      });
    }
  }
  check(http.get(BASE + PAGES.table), { "other pages are not limited": (told) => told.status === 200 });
}
