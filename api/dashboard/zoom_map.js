/**
 * A drawing that is zoomed and moved: by buttons, keys, wheel (with Ctrl, or while it has the focus), drag and two fingers.
 *
 * Pointing at a point shows its text; a click on it, or on a label, emits `pick`; a drag while "Select" is on emits `lasso` with the
 * points within the line. Points and labels keep their size on the screen, whatever the zoom (`--zoom`).
 */
const SCALE_MAX = 40;
const STEP = 1.4;
const CLICK_PIXELS = 4;
const SELECTED_MAX = 500;

/** Whether a point is within a polygon, by the even-odd rule. */
function isWithin(polygon, x, y) {
  let inside = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [xi, yi] = polygon[i];
    const [xj, yj] = polygon[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) inside = !inside;
  }
  return inside;
}

export default {
  template: `
    <div class="hw-zoom">
      <div class="hw-zoom-tools" role="group" aria-label="Tools of the map">
        <button type="button" aria-label="Zoom in" @click="zoom(${STEP})">+</button>
        <button type="button" aria-label="Zoom out" @click="zoom(1 / ${STEP})">&minus;</button>
        <button type="button" @click="reset">Whole map</button>
        <button type="button" :aria-pressed="isSelecting ? 'true' : 'false'" @click="isSelecting = !isSelecting">Select</button>
      </div>
      <div ref="stage" class="hw-zoom-stage" :class="{ zoomed: scale > 1, selecting: isSelecting }" tabindex="0" role="group"
        aria-label="Map: arrow keys move it, plus and minus zoom, Home shows all of it" @keydown="key" @wheel="wheel"
        @pointerdown="down" @pointermove="move" @pointerup="up" @pointercancel="cancel" @pointerleave="hint = ''"></div>
      <div v-show="hint" class="hw-zoom-hint" :style="place" aria-hidden="true">{{ hint }}</div>
    </div>`,
  props: { drawing: String, marked: String },
  emits: ["pick", "lasso"],
  data: () => ({ scale: 1, isSelecting: false, hint: "", place: {} }),
  created() {
    this.pointers = new Map();
  },
  mounted() {
    this.show();
  },
  watch: {
    drawing() {
      this.show();
    },
    marked() {
      this.mark();
    },
  },
  methods: {
    show() {
      this.$refs.stage.innerHTML = this.drawing;
      this.svg = this.$refs.stage.querySelector("svg");
      if (this.svg === null) return;
      const { width, height } = this.svg.viewBox.baseVal;
      this.whole = { width, height };
      if (this.box === undefined) this.box = { x: 0, y: 0, width, height };
      this.apply();
      this.mark();
    },
    mark() {
      for (const one of this.svg?.querySelectorAll("[data-cluster]") ?? [])
        one.classList.toggle("marked", this.marked !== "" && one.dataset.cluster === this.marked);
      this.svg?.classList.toggle("has-marked", this.marked !== "");
    },
    apply() {
      const { whole, box } = this;
      box.x = Math.min(Math.max(box.x, 0), whole.width - box.width);
      box.y = Math.min(Math.max(box.y, 0), whole.height - box.height);
      this.scale = whole.width / box.width;
      this.svg.setAttribute("viewBox", `${box.x} ${box.y} ${box.width} ${box.height}`);
      this.svg.style.setProperty("--zoom", this.scale);
    },
    /** Where a pointer is, in the drawing. */
    at(event) {
      const seen = this.svg.getBoundingClientRect();
      const x = this.box.x + ((event.clientX - seen.left) / seen.width) * this.box.width;
      return [x, this.box.y + ((event.clientY - seen.top) / seen.height) * this.box.height];
    },
    zoom(factor, [x, y] = [this.box.x + this.box.width / 2, this.box.y + this.box.height / 2]) {
      const { whole, box } = this;
      const scale = Math.min(Math.max(this.scale * factor, 1), SCALE_MAX);
      const width = whole.width / scale;
      const height = whole.height / scale;
      box.x = x - ((x - box.x) / box.width) * width;
      box.y = y - ((y - box.y) / box.height) * height;
      Object.assign(box, { width, height });
      this.apply();
    },
    pan(dx, dy) {
      this.box.x += dx;
      this.box.y += dy;
      this.apply();
    },
    reset() {
      Object.assign(this.box, { x: 0, y: 0 }, this.whole);
      this.apply();
    },
    key(event) {
      const step = this.box.width / 10;
      const acts = {
        "+": () => this.zoom(STEP),
        "=": () => this.zoom(STEP),
        "-": () => this.zoom(1 / STEP),
        Home: () => this.reset(),
        ArrowLeft: () => this.pan(-step, 0),
        ArrowRight: () => this.pan(step, 0),
        ArrowUp: () => this.pan(0, -step),
        ArrowDown: () => this.pan(0, step),
        Escape: () => this.cancel(),
      };
      const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : acts[event.key];
      if (act === undefined || this.svg === null) return;
      event.preventDefault();
      act();
    },
    wheel(event) {
      if (!(event.ctrlKey || event.metaKey || document.activeElement === this.$refs.stage)) return;
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 300), this.at(event));
    },
    down(event) {
      if (this.svg === null || event.button > 0) return;
      this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      this.began = { x: event.clientX, y: event.clientY, isMoved: this.pointers.size > 1 };
      if (this.isSelecting) this.line = [this.at(event)];
    },
    move(event) {
      const before = this.pointers.get(event.pointerId);
      if (before === undefined) {
        this.tell(event);
        return;
      }
      if (Math.hypot(event.clientX - this.began.x, event.clientY - this.began.y) > CLICK_PIXELS && !this.began.isMoved) {
        this.began.isMoved = true;
        this.$refs.stage.setPointerCapture(event.pointerId);
      }
      if (!this.began.isMoved) return;
      this.hint = "";
      const now = { x: event.clientX, y: event.clientY };
      if (this.line !== undefined) this.draw(event);
      else if (this.pointers.size > 1) this.pinch(event.pointerId, before, now);
      else {
        const unit = this.box.width / this.svg.getBoundingClientRect().width;
        this.pan((before.x - now.x) * unit, (before.y - now.y) * unit);
      }
      this.pointers.set(event.pointerId, now);
    },
    pinch(id, before, now) {
      const other = [...this.pointers].find(([found]) => found !== id)[1];
      const distance = (one) => Math.max(1, Math.hypot(one.x - other.x, one.y - other.y));
      this.zoom(distance(now) / distance(before), this.at({ clientX: (now.x + other.x) / 2, clientY: (now.y + other.y) / 2 }));
    },
    draw(event) {
      this.line.push(this.at(event));
      if (this.lasso === undefined) {
        this.lasso = document.createElementNS("http://www.w3.org/2000/svg", "polygon");
        this.lasso.setAttribute("class", "lasso");
        this.svg.append(this.lasso);
      }
      this.lasso.setAttribute("points", this.line.map((point) => point.join(",")).join(" "));
    },
    up(event) {
      const isClick = this.pointers.has(event.pointerId) && !this.began.isMoved;
      const line = this.line;
      this.cancel(event);
      if (isClick) this.pick(event);
      else if (line?.length > 2) this.select(line);
    },
    cancel(event) {
      if (event?.pointerId === undefined) this.pointers.clear();
      else this.pointers.delete(event.pointerId);
      this.lasso?.remove();
      this.lasso = this.line = undefined;
    },
    pick(event) {
      const { cluster, id } = event.target.dataset ?? {};
      if (cluster !== undefined) this.$emit("pick", { cluster, id: id ?? "" });
    },
    select(line) {
      const points = [...this.svg.querySelectorAll("circle")];
      const found = points.filter((one) => isWithin(line, one.cx.baseVal.value, one.cy.baseVal.value));
      this.$emit("lasso", { ids: found.slice(0, SELECTED_MAX).map((one) => one.dataset.id), total: found.length });
    },
    tell(event) {
      const text = event.target.dataset?.text ?? "";
      const stage = this.$refs.stage.parentElement.getBoundingClientRect();
      this.hint = text;
      const isRight = event.clientX - stage.left > stage.width / 2;
      const top = `${event.clientY - stage.top + 14}px`;
      this.place = isRight
        ? { top, right: `${stage.right - event.clientX + 8}px` }
        : { top, left: `${event.clientX - stage.left + 12}px` };
    },
  },
};
