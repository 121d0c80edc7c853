/**
 * Reads versioned resources of Highwater and keeps them current. Works without any other library, on other sites too.
 *
 * Invariants: a listener is never given an older version after a newer one, in any tab. Every request is conditional on the
 * snapshot that is held, and bypasses the browser's cache. The clock of the device decides only when a snapshot is too old to keep.
 */

const DAY_MS = 86_400_000;
const TIMEOUT_MS = 15_000;
const GONE = new Set([401, 403, 404, 410]);
// Close codes of a socket that its reader may not have, or no longer.
const REFUSED = new Set([4401, 4403]);

/** @returns {Storage | null} localStorage, or null where the browser forbids it. */
function localStorageOrNull() {
  try {
    return globalThis.localStorage ?? null;
  } catch {
    return null;
  }
}

/** Snapshots in localStorage. What cannot be stored is simply not there after a reload. */
class Store {
  constructor(storage, prefix, namespace, days) {
    this.storage = storage;
    this.prefix = prefix;
    this.own = `${prefix}${namespace}:`;
    this.keepMs = days * DAY_MS;
    this.clean();
  }

  /** Removes snapshots that are too old, damaged, or of another reader. */
  clean() {
    for (const [key] of this.entries()) {
      if (!key.startsWith(this.own) || this.parse(this.get(key)) === null) this.remove(key);
    }
  }

  /** Keys of all snapshots under the prefix with the time they were stored, the oldest first. */
  entries() {
    const found = [];
    try {
      for (let place = 0; place < (this.storage?.length ?? 0); place += 1) {
        const key = this.storage.key(place);
        if (key?.startsWith(this.prefix)) found.push([key, this.parse(this.get(key))?.at ?? 0]);
      }
    } catch {
      return [];
    }
    return found.sort((one, other) => one[1] - other[1]);
  }

  get(key) {
    try {
      return this.storage?.getItem(key) ?? null;
    } catch {
      return null;
    }
  }

  remove(key) {
    try {
      this.storage?.removeItem(key);
    } catch {
      /* nothing is stored then */
    }
  }

  /** A stored text as a snapshot; null if it is none, or too old by the clock of the device, whichever way that is wrong. */
  parse(text) {
    try {
      const held = JSON.parse(text);
      const isWhole = Number.isInteger(held.version) && typeof held.etag === "string" && typeof held.body === "string";
      return isWhole && Math.abs(Date.now() - held.at) <= this.keepMs ? held : null;
    } catch {
      return null;
    }
  }

  load(path) {
    return this.parse(this.get(this.own + path));
  }

  /** Stores a snapshot unless a newer one is there; gives room by removing the oldest others. */
  save(path, snapshot) {
    const key = this.own + path;
    const held = this.parse(this.get(key));
    if (held !== null && held.version > snapshot.version) return;
    const text = JSON.stringify({ ...snapshot, at: Date.now() });
    const others = this.entries().filter(([other]) => other !== key);
    for (;;) {
      try {
        this.storage?.setItem(key, text);
        return;
      } catch {
        const oldest = others.shift();
        if (oldest === undefined) {
          this.remove(key); // an older version must not come back after a reload
          return;
        }
        this.remove(oldest[0]);
      }
    }
  }
}

/** One resource: its snapshot, its listeners, and the timer of its next request. */
class Resource {
  constructor(client, path) {
    this.client = client;
    this.path = path;
    this.listeners = new Set();
    this.held = client.store.load(path);
    this.problem = null;
    this.isUpdating = false;
    this.failures = 0;
    this.retryAfterMs = 0;
    this.timer = null;
    this.request = null;
    this.isAgain = false;
  }

  get state() {
    const { held, problem } = this;
    const value = held === null ? null : held.isJson ? JSON.parse(held.body) : held.body;
    return { path: this.path, value, etag: held?.etag ?? null, version: held?.version ?? null, updating: this.isUpdating, problem };
  }

  tell() {
    const state = this.state;
    for (const one of [...this.listeners]) one.listener(state);
  }

  /** Takes a snapshot that is no older than the one that is held; says whether anything changed. */
  take(snapshot, isStored = true) {
    const { held } = this;
    if (held !== null && (snapshot.version < held.version || snapshot.etag === held.etag)) return false;
    this.held = { etag: snapshot.etag, version: snapshot.version, body: snapshot.body, isJson: snapshot.isJson };
    if (isStored) this.client.store.save(this.path, this.held);
    return true;
  }

  /** Another tab has stored something: a newer version is taken over, an older one is overwritten. */
  hear(text) {
    const stored = this.client.store.parse(text);
    if (stored !== null && (this.held === null || stored.version > this.held.version)) {
      this.take(stored, false);
      this.tell();
    } else if (stored !== null && stored.version < this.held.version) {
      this.client.store.save(this.path, this.held);
    }
  }

  /** Asks now; whoever asks meanwhile has it asked once more, since the answer on its way may be from before. */
  refresh() {
    if (this.request !== null) {
      this.isAgain = true;
      return this.request;
    }
    clearTimeout(this.timer);
    this.request = this.ask().finally(() => {
      this.request = null;
      if (this.isAgain) {
        this.isAgain = false;
        void this.refresh();
      } else {
        this.schedule();
      }
    });
    return this.request;
  }

  async ask() {
    const stored = this.client.store.load(this.path);
    if (stored !== null) this.take(stored, false);
    let changed = false;
    const before = `${this.isUpdating} ${this.problem?.status}`;
    try {
      changed = await this.answered(await this.client.fetch(this.path, this.held?.etag ?? null));
    } catch (error) {
      this.fail({ status: 0, title: "No connection", detail: String(error?.message ?? error) });
    }
    if (changed || before !== `${this.isUpdating} ${this.problem?.status}`) this.tell();
  }

  async answered(response) {
    const { status } = response;
    const etag = response.headers.get("etag");
    const version = Number.parseInt(response.headers.get("x-resource-version") ?? "", 10);
    this.retryAfterMs = 1_000 * (Number.parseInt(response.headers.get("retry-after") ?? "", 10) || 0);
    if (status === 304 && this.held !== null) return this.succeed(false);
    const body = await response.text();
    if (status === 200 && etag !== null && Number.isInteger(version)) {
      const isJson = (response.headers.get("content-type") ?? "").includes("json");
      if (isJson) JSON.parse(body); // half an answer is none
      return this.succeed(this.take({ etag, version, body, isJson }));
    }
    const problem = { status, title: response.statusText || `Status ${status}`, ...parsed(body) };
    if (GONE.has(status)) {
      this.held = null;
      this.client.store.remove(this.client.store.own + this.path);
      this.problem = problem;
      this.isUpdating = false;
      return true;
    }
    this.fail(problem);
    return false;
  }

  succeed(changed) {
    this.failures = 0;
    this.problem = null;
    this.isUpdating = false;
    return changed;
  }

  fail(problem) {
    this.failures += 1;
    this.problem = problem;
    this.isUpdating = true;
  }

  schedule() {
    clearTimeout(this.timer);
    if (this.listeners.size > 0 && this.request === null) {
      this.timer = setTimeout(() => void this.refresh(), this.delayMs());
    }
  }

  delayMs() {
    const { hidden, live, normal } = this.client.options;
    if (globalThis.document?.visibilityState === "hidden") return Math.max(hidden, this.retryAfterMs);
    const state = this.state;
    const isLive = [...this.listeners].some((one) => (typeof one.live === "function" ? one.live(state) : one.live));
    const [least, most] = isLive ? live : normal;
    // Readers that began together spread out; failures double the wait up to that of a hidden tab.
    const usual = least + Math.random() * (most - least);
    return Math.max(Math.min(usual * 2 ** Math.min(this.failures, 10), Math.max(hidden, usual)), this.retryAfterMs);
  }
}

function parsed(body) {
  try {
    const found = JSON.parse(body);
    return found !== null && typeof found === "object" ? found : {};
  } catch {
    return {};
  }
}

/** Reads resources, keeps their snapshots, and polls those that somebody watches. */
export class Highwater {
  constructor(options = {}) {
    this.options = {
      base: "", headers: {}, prefix: "highwater:", namespace: "", days: 14,
      live: [3_000, 5_000], normal: [10_000, 30_000], hidden: 60_000, ...options,
    };
    const { storage, prefix, namespace, days } = this.options;
    this.store = new Store(storage === undefined ? localStorageOrNull() : storage, prefix, namespace + this.options.base, days);
    this.resources = new Map();
    this.sockets = new Set();
    this.ending = new AbortController();
    const { signal } = this.ending;
    const refresh = () => this.invalidate();
    globalThis.addEventListener?.("storage", (event) => this.hear(event), { signal });
    globalThis.addEventListener?.("online", refresh, { signal });
    globalThis.addEventListener?.("offline", refresh, { signal });
    globalThis.addEventListener?.("pageshow", (event) => event.persisted && refresh(), { signal });
    globalThis.document?.addEventListener("visibilitychange", () => this.seen(), { signal });
  }

  /** Calls `listener` with the snapshot that is held, then whenever a newer version or another state comes. */
  watch(path, listener, { live = false, keys = [] } = {}) {
    const resource = this.resource(path);
    const one = { listener, live, keys };
    resource.listeners.add(one);
    if (resource.held !== null) listener(resource.state);
    void resource.refresh();
    return {
      refresh: () => resource.refresh(),
      close: () => {
        resource.listeners.delete(one);
        if (resource.listeners.size === 0) {
          clearTimeout(resource.timer);
          this.resources.delete(path);
        }
      },
    };
  }

  /** Reads a resource once, conditionally; gives what is held if the service does not answer. */
  async read(path) {
    const resource = this.resource(path);
    await resource.refresh();
    const { state } = resource;
    if (resource.listeners.size === 0) this.resources.delete(path);
    return state;
  }

  /** Hands over what a page came with; ignored where a newer version is held. */
  seed(path, { etag, version, value }) {
    const isJson = typeof value !== "string";
    const resource = this.resource(path);
    if (resource.take({ etag, version, body: isJson ? JSON.stringify(value) : value, isJson })) resource.tell();
    return resource.state;
  }

  /** Asks again for what is watched: everything, one path, or what was watched with this key. */
  invalidate(pathOrKey) {
    for (const [path, resource] of this.resources) {
      const has = (one) => one.keys.includes(pathOrKey);
      if (pathOrKey === undefined || path === pathOrKey || [...resource.listeners].some(has)) void resource.refresh();
    }
  }

  /**
   * Applies one pushed message: a newer value is taken at once. Without a value the resource is requested; without a key
   * either, everything is. A hidden page requests it when it is seen again.
   */
  patch({ path, key, etag, version, value }) {
    if (path !== undefined && value !== undefined && etag !== undefined && Number.isInteger(version)) {
      this.seed(path, { etag, version, value });
    } else if (globalThis.document?.visibilityState !== "hidden") {
      this.invalidate(path ?? key);
    }
  }

  /**
   * Listens to a WebSocket of patches and connects again when it is lost. The first message of the server names nothing, so
   * that everything is requested: what changed before was not received. Polling continues, so a lost message only costs time.
   */
  connect(url) {
    let failures = 0;
    let socket = null;
    let timer = null;
    let isClosed = false;
    const open = () => {
      socket = new WebSocket(url);
      socket.onmessage = (event) => {
        failures = 0;
        const message = parsed(event.data);
        if (message.type === "patch") this.patch(message);
      };
      socket.onclose = (event) => {
        if (isClosed) return;
        if (REFUSED.has(event.code)) {
          connection.close();
          this.invalidate(); // a reader who was signed out sees it now
          return;
        }
        failures += 1;
        timer = setTimeout(open, Math.min(60_000, 1_000 * 2 ** failures) * (0.5 + Math.random() / 2));
      };
    };
    const connection = {
      close: () => {
        isClosed = true;
        clearTimeout(timer);
        socket?.close();
        this.sockets.delete(connection);
      },
    };
    this.sockets.add(connection);
    open();
    return connection;
  }

  /** Stops polling and listening; snapshots stay. */
  close() {
    this.ending.abort();
    for (const connection of [...this.sockets]) connection.close();
    for (const resource of this.resources.values()) {
      resource.listeners.clear();
      clearTimeout(resource.timer);
    }
    this.resources.clear();
  }

  resource(path) {
    let found = this.resources.get(path);
    if (found === undefined) {
      found = new Resource(this, path);
      this.resources.set(path, found);
    }
    return found;
  }

  fetch(path, etag) {
    const { base, headers, credentials = "same-origin" } = this.options;
    const condition = etag === null ? {} : { "If-None-Match": etag };
    const sent = typeof headers === "function" ? headers() : headers;
    return globalThis.fetch(base + path, {
      cache: "no-store", credentials, headers: { ...sent, ...condition }, signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  }

  hear(event) {
    if (event.key?.startsWith(this.store.own)) this.resources.get(event.key.slice(this.store.own.length))?.hear(event.newValue);
  }

  seen() {
    if (globalThis.document.visibilityState === "visible") this.invalidate();
    else for (const resource of this.resources.values()) resource.schedule();
  }
}
