/** Reads versioned resources of Highwater and keeps them current. */

/** An error of RFC 9457, or what stands for one; status 0: no answer came. */
export interface Problem {
  status: number;
  title: string;
  type?: string;
  detail?: string;
  [member: string]: unknown;
}

/** What is known of a resource. */
export interface State<T = unknown> {
  path: string;
  /** The newest version that was received; null before the first, and after the service said that it is gone or forbidden. */
  value: T | null;
  etag: string | null;
  version: number | null;
  /** The last request failed: `value` may be old, and is asked for again. Show "Updating…". */
  updating: boolean;
  problem: Problem | null;
}

export interface Options {
  /** Before every path, for example "https://highwater.example.org". */
  base?: string;
  /** Sent with every request, for example { Authorization: "Bearer …" }. */
  headers?: Record<string, string> | (() => Record<string, string>);
  credentials?: RequestCredentials;
  /** Where snapshots are kept; null: only in memory. Default: localStorage. */
  storage?: Storage | null;
  /** Beginning of the keys in the storage. */
  prefix?: string;
  /** Whose snapshots they are; those of others under the same prefix are removed. */
  namespace?: string;
  /** Days for which a snapshot is kept. */
  days?: number;
  /** Least and most milliseconds between requests for what is live, and for the rest; milliseconds in a hidden tab. */
  live?: [number, number];
  normal?: [number, number];
  hidden?: number;
}

export interface WatchOptions<T = unknown> {
  /** Whether the resource is asked for every few seconds. */
  live?: boolean | ((state: State<T>) => boolean);
  /** Keys of resources by which a pushed patch names it. */
  keys?: string[];
}

export interface Watch {
  refresh(): Promise<void>;
  close(): void;
}

/** A message of a socket of patches; without a value the resource is requested, and without a key everything. */
export interface Patch {
  type?: "patch";
  path?: string;
  key?: string;
  etag?: string;
  version?: number;
  value?: unknown;
}

export class Highwater {
  constructor(options?: Options);
  /** Calls the listener with the snapshot, then with every newer version and every other state. */
  watch<T = unknown>(path: string, listener: (state: State<T>) => void, options?: WatchOptions<T>): Watch;
  /** Reads once; gives the snapshot if the service does not answer. */
  read<T = unknown>(path: string): Promise<State<T>>;
  /** Hands over what a page came with; ignored where a newer version is held. */
  seed<T = unknown>(path: string, snapshot: { etag: string; version: number; value: T }): State<T>;
  /** Asks again: for everything watched, for one path, or for what was watched with a key. */
  invalidate(pathOrKey?: string): void;
  patch(patch: Patch): void;
  /** Listens to a WebSocket of patches, and connects again when it is lost. */
  connect(url: string): { close(): void };
  close(): void;
}
