// Worst case (R4.42): everybody comes at once with nothing in hand: no tag, all pages in one go, again and again. Whoever is told
// that a page is being made comes again after a second.

import { PAGES, prewarm, show } from "./client.js";

const VUS = Number(__ENV.VUS || 200);

export const options = {
  scenarios: {
    everybody: {
      executor: "per-vu-iterations",
      vus: VUS,
      iterations: Number(__ENV.ITERATIONS || 10),
      maxDuration: "30s",
      gracefulStop: "3s",
    },
  },
  batchPerHost: 6, // what a browser opens
  thresholds: {
    checks: ["rate>0.999"],
    http_req_failed: ["rate<0.001"],
    show_ms: ["p(95)<5000"],
  },
  summaryTrendStats: ["min", "med", "avg", "p(90)", "p(95)", "p(99)", "max"],
};

export const setup = prewarm;

export default function () {
  show({}, Object.keys(PAGES));
}
