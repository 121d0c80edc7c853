// The program of another site that reads with `highwater.js`, checked against `highwater.d.ts`. Prints what it saw as JSON.
import { Highwater, type Options, type State } from "./highwater.js";
import { Highwater as Implementation } from "./implementation.js"; // the same file, without its declarations
import type { components } from "./schema.js";

type Channel = components["schemas"]["Channel"];
declare const process: { argv: string[] };

// Every method that the declarations promise is in the module.
export const methods: Record<keyof Highwater, unknown> = Implementation.prototype;

const [, , base = "", token = ""] = process.argv;
const statuses: number[] = [];
const fetched = globalThis.fetch;
globalThis.fetch = async (...request) => {
  const response = await fetched(...request);
  statuses.push(response.status);
  return response;
};

const options: Options = { base, headers: () => ({ Authorization: `Bearer ${token}` }), storage: null };
const client = new Highwater(options);
let watch = { close() {} };
const watched = await new Promise<State<Channel>>((resolve) => {
  watch = client.watch<Channel>("/api/channels/kafka", resolve, { live: ({ value }) => (value?.current_seq ?? 0) > 0 });
});
const again = await client.read<Channel>("/api/channels/kafka");
const missing = await client.read("/api/channels/nothing");
watch.close();
client.close();

export const refused = [
  // @ts-expect-error An option has its type.
  () => new Highwater({ days: "two" }),
  // @ts-expect-error A value may be missing.
  () => watched.value.current_seq,
];

const count: number | undefined = watched.value?.current_seq;
const isSame: boolean = again.version === watched.version && again.etag === watched.etag;
console.log(JSON.stringify({ count, isSame, statuses, problem: missing.problem?.type }));
