// Elements of the page. What servers say becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function byId(id) {
  return document.getElementById(id);
}

/** Returns an element with attributes and children; strings become text. */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Returns the same for SVG. */
export function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// Characters that turn the direction of what follows, which could make a name look like another.
const TURNING = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Sets a text, and touches the page only if it is another one. */
export function say(where, text) {
  const shown = text.replace(TURNING, "\ufffd");
  if (where.textContent !== shown) where.textContent = shown;
}

/** Sets an attribute likewise; "" removes it. */
export function mark(where, name, value) {
  if (value === "") where.removeAttribute(name);
  else if (where.getAttribute(name) !== value) where.setAttribute(name, value);
}
