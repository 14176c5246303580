// Elements, figures and charts. All text goes in as text, never as HTML: names are the tenants' choice.

/** Creates an element with attributes and children; strings become text. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined && value !== false) made.setAttribute(name, value);
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";
function svg(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Sets an element's text if it is another one. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Formats bytes with a binary unit, as `vgpu top` does. */
export function bytes(count) {
  const unit = [[2 ** 40, "Ti"], [2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"]].find(([size]) => count >= size);
  if (!unit) return `${count}`;
  const amount = count / unit[0];
  return `${Number.isInteger(amount) || amount >= 100 ? Math.round(amount) : amount.toFixed(1)}${unit[1]}`;
}

/** Formats seconds in the largest whole unit. */
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([size]) => whole >= size) ?? [1, "s"];
  return `${Math.floor(whole / size)} ${unit}`;
}

export const percent = value => value === null || value === undefined ? "?" : `${Math.round(value)}%`;

/** Returns a figure: label, bar and chart. */
export function figure(kind, label) {
  const value = el("b"), fill = el("i"), bar = el("div", { class: "bar", role: "meter", "aria-valuemin": 0, "aria-label": label }, fill);
  const chart = svg("svg", { class: "chart", preserveAspectRatio: "none", role: "img" });
  return { root: el("div", { class: `figure ${kind}` }, el("div", { class: "label" }, el("span", {}, label), value), bar, chart), value, fill, bar, chart, label };
}

/** Shows `now` of `limit` in a figure. */
export function measure(figure, now, limit, text) {
  const part = limit ? Math.min(1, (now ?? 0) / limit) : 0;
  say(figure.value, text);
  if (figure.bar.getAttribute("aria-valuetext") === text) return;
  figure.fill.style.setProperty("--part", part.toFixed(3));
  figure.root.classList.toggle("full", part >= 0.95 && figure.root.classList.contains("memory"));
  for (const [name, value] of [["aria-valuemax", limit || 1], ["aria-valuenow", Math.min(now ?? 0, limit || 1)], ["aria-valuetext", text]])
    figure.bar.setAttribute(name, value);
}

/** Draws values (null: unknown) from 0 to `top`, with a line at `limit` if it is below `top`. */
export function plot(figure, values, top, limit, span) {
  const width = Math.max(1, values.length - 1), height = 100;
  const y = value => height * (1 - Math.min(1, value / top));
  figure.chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const parts = [svg("line", { class: "ground", x1: 0, x2: width, y1: height, y2: height })];
  // A run of known values is one line.
  for (let from = 0; from < values.length; from++) {
    if (values[from] === null) continue;
    let to = from;
    while (to + 1 < values.length && values[to + 1] !== null) to++;
    const line = values.slice(from, to + 1).map((value, nth) => `${from + nth} ${y(value).toFixed(1)}`);
    if (line.length === 1) line.push(`${Math.min(width, from + 0.5)} ${y(values[from]).toFixed(1)}`);
    const end = Math.max(to, from + 0.5);
    parts.push(svg("path", { class: "area", d: `M${from} ${height} L${line.join(" L")} L${end} ${height}Z` }));
    parts.push(svg("path", { class: "trace", d: `M${line.join(" L")}` }));
    from = to;
  }
  if (limit && limit <= top) parts.push(svg("line", { class: "limit", x1: 0, x2: width, y1: y(limit), y2: y(limit) }));
  figure.chart.replaceChildren(...parts);
  figure.chart.setAttribute("aria-label", `${figure.label} of the last ${duration(span)}`);
}
