"use strict";
(() => {
  const make = (tag, attributes, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const button = (text, act, attributes = {}) => {
    const node = make("button", { type: "button", ...attributes }, text);
    node.addEventListener("click", act);
    return node;
  };

  // One of several buttons is pressed at a time.
  const choice = (label, entries, choose) => {
    const group = make("div", { class: "bar", role: "group", "aria-label": label }, make("span", {}, label));
    const buttons = entries.map(([value, text]) => button(text, () => press(value)));
    const press = (value) => {
      entries.forEach(([own], i) => buttons[i].setAttribute("aria-pressed", String(own === value)));
      choose(value);
    };
    group.append(...buttons);
    press(entries[0][0]);
    return { group, press };
  };

  // Dark or light.
  const root = document.documentElement;
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = button("", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); }, { class: "theme" });
  const name = () => { theme.textContent = isDark() ? "Light colors" : "Dark colors"; };
  name();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  document.querySelector("header").prepend(theme);

  // Tables that sort.
  const valueOf = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const number = Number(text.replace(/[,%]/g, ""));
    return text === "\u2013" || text === "" ? null : Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  };
  for (const table of document.querySelectorAll("table.data")) {
    const body = table.tBodies[0];
    if (body.rows.length < 2) continue;
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    heads.forEach((head, column) => {
      const sort = button("", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...body.rows].map((row) => [valueOf(row, column), row]);
        const missing = (value) => value === null;
        rows.sort(([a], [b]) => missing(a) || missing(b) ? compare(a, b) : up ? compare(a, b) : compare(b, a));
        body.append(...rows.map(([, row]) => row));
      });
      sort.append(...head.childNodes);
      head.append(sort);
    });
  }

  // Drawings that can be explored.
  const HELP = "Point at a line or box, or press an arrow key here: left and right go through links from the busiest, up and down through devices. Plus, minus and 0 zoom.";
  const REACH = [[0, 0], [3, 0], [-3, 0], [0, 3], [0, -3], [5, 5], [-5, 5], [5, -5], [-5, -5]];
  const explorers = new Map();

  const explore = (figure) => {
    const svg = figure.querySelector("svg.fabric");
    const text = new Map();
    for (const part of svg.querySelectorAll(".e, .n")) {
      const title = part.querySelector("title");
      text.set(part, title.textContent);
      title.remove();
    }
    const lines = [...svg.querySelectorAll(".e")].reverse();
    const nodes = [...svg.querySelectorAll(".n")];
    const canvas = make("div", { class: "canvas", tabindex: "0", role: "group", "aria-roledescription": "drawing to explore" });
    canvas.setAttribute("aria-label", svg.querySelector("title").textContent);
    const details = make("output", { class: "details empty", "aria-live": "polite", id: svg.id + "-details" }, HELP);
    canvas.setAttribute("aria-describedby", details.id);
    const scroll = figure.querySelector(".scroll");
    scroll.replaceWith(canvas);
    canvas.append(scroll);
    const bar = make("div", { class: "bar", role: "group", "aria-label": "Zoom" });
    canvas.after(make("div", { class: "under" }, details, bar));

    const [, , fullWidth, fullHeight] = svg.getAttribute("viewBox").split(" ").map(Number);
    let view = { x: 0, y: 0, width: fullWidth };
    const height = () => view.width * fullHeight / fullWidth;
    const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
    const draw = () => {
      view.width = clamp(view.width, fullWidth / 16, fullWidth);
      view.x = clamp(view.x, 0, fullWidth - view.width);
      view.y = clamp(view.y, 0, fullHeight - height());
      svg.setAttribute("viewBox", [view.x, view.y, view.width, height()].map((v) => v.toFixed(2)).join(" "));
      canvas.classList.toggle("moved", view.width < fullWidth);
    };
    const zoom = (factor, at = [view.x + view.width / 2, view.y + height() / 2]) => {
      const before = view.width;
      view.width = clamp(before * factor, fullWidth / 16, fullWidth);
      const share = view.width / before;
      view.x = at[0] - (at[0] - view.x) * share;
      view.y = at[1] - (at[1] - view.y) * share;
      draw();
    };
    const reset = () => { view = { x: 0, y: 0, width: fullWidth }; draw(); };

    let current = null;
    const show = (part) => {
      if (current) current.classList.remove("on");
      current = part;
      details.classList.toggle("empty", !part);
      details.textContent = part ? text.get(part) : HELP;
      if (part) part.classList.add("on");
    };
    const bring = (part) => {
      if (view.width >= fullWidth) return;
      const box = part.getBBox();
      const x = box.x + box.width / 2, y = box.y + box.height / 2;
      if (x < view.x || x > view.x + view.width) view.x = x - view.width / 2;
      if (y < view.y || y > view.y + height()) view.y = y - height() / 2;
      draw();
    };
    const walk = (parts, by) => {
      const at = parts.indexOf(current);
      const next = at < 0 ? (by > 0 ? 0 : parts.length - 1) : (at + by + parts.length) % parts.length;
      show(parts[next]);
      bring(parts[next]);
    };
    const keys = {
      ArrowRight: () => walk(lines, 1), ArrowLeft: () => walk(lines, -1),
      ArrowDown: () => walk(nodes, 1), ArrowUp: () => walk(nodes, -1),
      "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), 0: reset,
      Escape: () => { show(null); reset(); },
    };
    canvas.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });

    const place = (event) => {
      const box = svg.getBoundingClientRect();
      return [view.x + (event.clientX - box.left) / box.width * view.width, view.y + (event.clientY - box.top) / box.height * height()];
    };
    const under = (event) => {
      for (const [dx, dy] of REACH) {
        const found = document.elementFromPoint(event.clientX + dx, event.clientY + dy);
        const part = found && found.closest(".e, .n");
        if (part && svg.contains(part)) return part;
      }
      return null;
    };
    let grip = null;
    svg.addEventListener("pointermove", (event) => {
      if (grip) {
        const box = svg.getBoundingClientRect();
        view.x = grip.x - (event.clientX - grip.left) / box.width * view.width;
        view.y = grip.y - (event.clientY - grip.top) / box.height * height();
        draw();
        return;
      }
      const part = under(event);
      if (part && part !== current) show(part);
    });
    svg.addEventListener("pointerdown", (event) => {
      const part = under(event);
      if (part) show(part);
      if (view.width >= fullWidth || event.button) return;
      grip = { x: view.x, y: view.y, left: event.clientX, top: event.clientY };
      svg.setPointerCapture(event.pointerId);
    });
    for (const kind of ["pointerup", "pointercancel"]) svg.addEventListener(kind, () => { grip = null; });
    svg.addEventListener("dblclick", (event) => zoom(0.5, place(event)));
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, place(event));
    }, { passive: false });
    addEventListener("beforeprint", reset);

    bar.append(button("Zoom in", () => zoom(0.7)), button("Zoom out", () => zoom(1 / 0.7)), button("Whole drawing", reset));
    explorers.set(svg.id, {
      show: (id) => { const part = document.getElementById(id); show(part); bring(part); },
      canvas,
    });
  };
  document.querySelectorAll("figure.explore").forEach(explore);

  // One design per fabric at a time; the page without script, and in print, shows all.
  const pickers = new Map();
  for (const block of document.querySelectorAll(".fabric-block")) {
    const designs = [...block.querySelectorAll(".design")];
    if (designs.length < 2) continue;
    const entries = designs.map((design, i) => [i, design.dataset.policy]);
    const picker = choice("Load balancing:", entries, (chosen) => designs.forEach((design, i) => { design.hidden = i !== chosen; }));
    designs[0].before(picker.group);
    designs.forEach((design, i) => pickers.set(design, () => picker.press(i)));
  }

  // What the drawings show.
  const fabrics = document.getElementById("fabrics");
  if (fabrics && fabrics.querySelector(".keys.paused")) {
    const entries = [["load", "Load"], ["paused", "Pauses"], ["queue", "Longest queues"]];
    const measure = choice("Show:", entries, (chosen) => { fabrics.dataset.measure = chosen; });
    fabrics.querySelector(".keys").before(measure.group);
    addEventListener("beforeprint", () => measure.press("load"));
  }

  // From the table of busy links to the drawing.
  for (const link of document.querySelectorAll("[data-show]")) {
    const id = link.dataset.show;
    const open = button(link.textContent, () => {
      const own = explorers.get(id.replace(/-e\d+$/, ""));
      const pick = pickers.get(own.canvas.closest(".design"));
      if (pick) pick();
      own.canvas.scrollIntoView({ block: "nearest" });
      own.canvas.focus({ preventScroll: true });
      own.show(id);
    }, { class: "show", title: "Show in the drawing" });
    link.replaceChildren(open);
  }

  // Boxes that scroll sideways can be reached by keyboard.
  const reach = () => {
    for (const box of document.querySelectorAll(".scroll, pre")) {
      if (box.scrollWidth > box.clientWidth + 1) box.setAttribute("tabindex", "0");
      else box.removeAttribute("tabindex");
    }
  };
  reach();
  addEventListener("resize", reach);

  // Paper cannot unfold anything.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((one) => { one.open = false; }));
})();
