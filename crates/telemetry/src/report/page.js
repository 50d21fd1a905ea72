
"use strict";
// Shows the values under the pointer or at the place that the arrow keys select. Each chart has its values as JSON next to
// its SVG.
(() => {
  const tip = document.getElementById("tip");
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const bytes = (value) => {
    let unit = 0;
    while (value >= 1024 && unit + 1 < units.length) { value /= 1024; unit += 1; }
    return value.toFixed(unit === 0 ? 0 : 2) + " " + units[unit];
  };
  const number = (value) => {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(3);
    return value.toLocaleString("en", { maximumSignificantDigits: size >= 1e5 ? 7 : 5 });
  };
  const add = (parent, kind, text, name) => {
    const child = parent.appendChild(document.createElement(kind));
    if (text !== undefined) child.textContent = text;
    if (name) child.className = name;
    return child;
  };
  const fill = (data, place) => {
    tip.replaceChildren();
    add(tip, "b", data.heads[place]);
    for (const { name, class: style, unit, values } of data.rows) {
      const value = values[place];
      if (value === null || (value === 0 && !data.zeros)) continue;
      const row = add(tip, "div", undefined, style === "sum" ? "total" : "");
      add(row, "i", undefined, style);
      row.append(name);
      add(row, "span", unit === "bytes" ? bytes(value) : number(value));
    }
    tip.hidden = false;
  };
  const nearest = (places, x) => {
    let low = 0, high = places.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (places[middle] <= x) low = middle; else high = middle;
    }
    return x - places[low] < places[high] - x ? low : high;
  };
  for (const svg of document.querySelectorAll(".chart svg")) {
    const source = svg.parentElement.querySelector("script");
    if (!source) continue;
    const data = JSON.parse(source.textContent);
    const cross = svg.querySelector(".cross");
    let place = -1;
    const show = (at, clientY) => {
      place = at;
      const box = svg.getBoundingClientRect();
      const x = data.x[at];
      cross.setAttribute("transform", `translate(${x} 0)`);
      cross.classList.add("on");
      fill(data, at);
      const left = box.left + x * box.width / data.width;
      const wide = tip.offsetWidth, high = tip.offsetHeight;
      tip.style.left = `${left + 16 + wide > innerWidth ? Math.max(4, left - wide - 16) : left + 16}px`;
      tip.style.top = `${Math.max(4, Math.min(clientY - high / 2, innerHeight - high - 4))}px`;
    };
    const hide = () => { place = -1; tip.hidden = true; cross.classList.remove("on"); };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * data.width / box.width;
      const [left, right] = data.edges;
      if (x < left - 8 || x > right + 8) hide(); else show(nearest(data.x, x), event.clientY);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const last = data.x.length - 1, far = Math.max(1, Math.round(last / 20));
      const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -far, PageDown: far, Home: -last, End: last };
      if (event.key === "Escape") hide();
      if (!(event.key in moves)) return;
      event.preventDefault();
      const box = svg.getBoundingClientRect();
      show(Math.max(0, Math.min(last, Math.max(place, 0) + moves[event.key])), box.top + box.height / 2);
    });
  }
})();
