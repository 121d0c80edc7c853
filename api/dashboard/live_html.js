// A part of a page as HTML, changed in place: what is the same stays, so that a link keeps its focus, a list its scroll position,
// and what somebody opened stays open while figures move.
//
// Invariant: after a change the content is what a fresh page would have, but for what a person changed: a `details` that was
// opened or closed. Elements with the same `data-key` are the same thing, wherever they stand.

const keyOf = (node) => node.dataset?.key;
const isSameKind = (old, next) => old.nodeName === next.nodeName && keyOf(old) === keyOf(next);

function patchAttributes(old, next) {
  const isOfPerson = (name) => name === "open" && old.nodeName === "DETAILS";
  for (const { name, value } of next.attributes) {
    if (old.getAttribute(name) !== value && !isOfPerson(name)) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && !isOfPerson(name)) old.removeAttribute(name);
  }
}

function patch(old, next) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== next.data) old.data = next.data;
  } else if (!old.isEqualNode(next)) {
    patchAttributes(old, next);
    patchChildren(old, next);
  }
}

function patchChildren(old, next) {
  const wanted = new Set([...next.childNodes].map(keyOf).filter(Boolean));
  // What is gone goes first: then what stays need not be moved, which would take its focus.
  for (const child of [...old.childNodes]) if (keyOf(child) && !wanted.has(keyOf(child))) child.remove();
  const keyed = new Map([...old.childNodes].filter(keyOf).map((child) => [keyOf(child), child]));
  let at = old.firstChild;
  for (const child of [...next.childNodes]) {
    const found = keyOf(child) ? keyed.get(keyOf(child)) : at;
    keyed.delete(keyOf(child));
    if (found && isSameKind(found, child)) {
      if (found === at) at = at.nextSibling;
      else old.insertBefore(found, at);
      patch(found, child);
    } else {
      old.insertBefore(child, at);
    }
  }
  while (at) {
    const after = at.nextSibling;
    at.remove();
    at = after;
  }
}

export default {
  props: { innerHTML: String, tag: String, sanitize: Boolean },
  render() {
    return Vue.h(this.tag);
  },
  mounted() {
    this.show();
  },
  updated() {
    this.show();
  },
  methods: {
    show() {
      if (this.innerHTML === this.shown) return;
      const isFirst = this.shown === undefined;
      this.shown = this.innerHTML;
      if (this.sanitize) return this.$el.setHTML(this.innerHTML);
      if (isFirst) return void (this.$el.innerHTML = this.innerHTML);
      const template = document.createElement("template");
      template.innerHTML = this.innerHTML;
      patchChildren(this.$el, template.content);
    },
  },
};
