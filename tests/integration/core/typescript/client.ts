// The program of a user in TypeScript: types from the OpenAPI document, requests through `openapi-fetch`. Prints what it saw as JSON.
import createClient from "openapi-fetch";

import type { components, paths } from "./schema.js";

type Schemas = components["schemas"];
declare const process: { argv: string[] };

const [, , baseUrl = "", token = ""] = process.argv;
const api = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });

// A read, and the same read again with the ETag of the first.
const channel = { params: { path: { channel: "kafka" } } };
const first = await api.GET("/api/channels/{channel}", channel);
if (first.data === undefined) throw new Error(first.error.detail);
const found: Schemas["Channel"] = first.data;
const count: number = found.current_seq;
const etag = first.response.headers.get("etag") ?? "";
const second = await api.GET("/api/channels/{channel}", { ...channel, headers: { "If-None-Match": etag } });

// A write.
const subscriptions = { params: { path: { user: "ada" } }, body: { channels: ["kafka"] } };
const written = await api.PUT("/api/users/{user}/subscriptions", subscriptions);
const positions: string[] = written.data?.positions ?? [];

// An error: a problem of RFC 9457, its type one of those that the document lists.
const missing = await api.GET("/api/channels/{channel}", { params: { path: { channel: "nothing" } } });
const problem: Schemas["Problem"] | undefined = missing.error;
const kind: "/problems/not-found" | "another" = problem?.type === "/problems/not-found" ? problem.type : "another";

// A list, page by page.
const pages: string[][] = [];
let cursor: string | null = null;
do {
  const query: { limit: number; cursor: string | null } = { limit: 2, cursor };
  const { data, error } = await api.GET("/api/channels", { params: { query } });
  if (data === undefined) throw new Error(error.detail);
  pages.push(data.channels.map((one) => one.channel_id));
  cursor = data.next_cursor;
} while (cursor !== null);

// What the document does not have does not compile; these are called by nobody.
export const refused = [
  // @ts-expect-error There is no such path.
  () => api.GET("/api/nothing", {}),
  // @ts-expect-error The path has a parameter.
  () => api.GET("/api/channels/{channel}", {}),
  // @ts-expect-error A limit is a number.
  () => api.GET("/api/channels", { params: { query: { limit: "two" } } }),
  // @ts-expect-error A body has only members of its schema.
  () => api.PUT("/api/users/{user}/subscriptions", { ...subscriptions, body: { topics: ["kafka"] } }),
  // @ts-expect-error An answer has only members of its schema.
  () => found.nothing,
  // @ts-expect-error There is no such kind of problem.
  () => problem?.type === "/problems/nothing",
];

console.log(JSON.stringify({ count, statuses: [first.response.status, second.response.status], positions, kind, pages, missing: problem }));
