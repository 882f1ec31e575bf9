// Numbers as people read them, on the axes of charts; all else comes in words.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(1);
  return size >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

function amount(bytes) {
  let power = 0;
  while (Math.abs(bytes) >= 1024 && power < UNITS.length - 1) {
    bytes /= 1024;
    power += 1;
  }
  return `${digits(bytes)} ${UNITS[power]}`;
}

function span(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return `${digits(seconds * 1e6)} µs`;
  if (seconds < 1) return `${digits(seconds * 1e3)} ms`;
  return `${digits(seconds)} s`;
}

const WORDS = {
  bytes: amount,
  rate: (value) => `${amount(value)}/s`,
  seconds: span,
  number: digits,
};

/** Returns a value of a chart in its unit. */
export function inWords(value, unit) {
  return value === null || value === undefined ? "–" : WORDS[unit](value);
}

/** Returns a time of day. */
export function clock(unixSeconds) {
  return new Date(unixSeconds * 1000).toLocaleTimeString([], { hour12: false });
}

/** Returns a number at or above a value that is short in its unit. */
export function ceiling(value, unit) {
  if (!(value > 0)) return 1;
  let scale = 1;
  if (unit === "bytes" || unit === "rate") while (value / scale >= 1024) scale *= 1024;
  const power = 10 ** Math.floor(Math.log10(value / scale));
  const step = [1, 2, 4, 5, 10].find((each) => each * power * scale >= value * (1 - 1e-9));
  return step * power * scale;
}
