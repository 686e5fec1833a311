// The calculator: the projection of `excise project`, with its intervals, over the blocks that the page carries.
// Its state is the part of the address after "#", so that a link says what its reader saw.
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("calculator-data").textContent);
  const form = document.getElementById("calculator-form");
  const out = (id) => document.getElementById("calculator-" + id);
  const numbers = { actions: [1, 1e6], rollouts: [1, 1e12], think: [0, 1e6], fail: [0, 99.9], deadline: [0.001, 1e7] };

  function columns(row) {
    const each = (values) => (Array.isArray(values) ? values : row.ids.map(() => values));
    return { rollouts: each(row.rollouts), actions: each(row.actions), fixed: each(row.fixed), acting: each(row.acting) };
  }
  const rows = new Map(data.rows.map((row) => [row.name, { ids: row.ids, measured: row.measured, columns: columns(row) }]));

  const sum = (values) => values.reduce((total, value) => total + value, 0);

  // A row's sums, whole and without each block, for the blocks in `ids`.
  function sums(row, ids) {
    const at = new Map(row.ids.map((id, index) => [id, index]));
    const kept = {};
    for (const name of Object.keys(row.columns)) kept[name] = ids.map((id) => row.columns[name][at.get(id)]);
    const whole = {};
    for (const name of Object.keys(kept)) whole[name] = sum(kept[name]);
    const without = ids.map((_, index) => {
      const left = {};
      for (const name of Object.keys(kept)) left[name] = whole[name] - kept[name][index];
      return left;
    });
    return { whole, without };
  }

  const line = (s) => ({ fixed: s.fixed / s.rollouts, each: s.acting / s.actions });

  function seconds(line, state) {
    const once = line.fixed + state.actions * (line.each + state.think);
    const failed = state.fail / 100;
    return once + (failed / (1 - failed)) * once;
  }

  // A value and its interval, from the value without each block: the jackknife of stats/jackknife.py, on its three scales.
  const plain = { to: (x) => x, back: (x) => x };
  const logarithm = { to: Math.log, back: Math.exp };

  function spread(values) {
    const n = values.length, middle = sum(values) / n;
    return Math.sqrt(((n - 1) / n) * sum(values.map((x) => (x - middle) ** 2)));
  }

  function reached(value, without, scale) {
    const reach = data.student[String(without.length)] * spread(without.map(scale.to));
    return [scale.back(scale.to(value) - reach), scale.back(scale.to(value) + reach)];
  }

  function estimate(value, without, signed) {
    if (without.length < data.fewest) return { value };
    const positive = !signed && value > 0 && without.every((x) => x > 0);
    let [low, high] = reached(value, without, positive ? logarithm : plain);
    if (signed && low < high) {
      const near = data.near * spread(without);
      const outward = reached(value, without, { to: (x) => Math.asinh(x / near), back: (y) => near * Math.sinh(y) });
      if (value > 0) high = Math.max(high, outward[1]); else low = Math.min(low, outward[0]);
    }
    return { value, low, high };
  }

  function time(row, state) {
    const { whole, without } = sums(row, row.ids);
    return estimate(seconds(line(whole), state), without.map((s) => seconds(line(s), state)), false);
  }

  function difference(a, b, state) {
    const there = new Set(b.ids);
    const shared = a.ids.filter((id) => there.has(id));
    if (!shared.length) return null;
    const mine = sums(a, shared), theirs = sums(b, shared);
    const of = (x, y) => seconds(line(x), state) - seconds(line(y), state);
    return estimate(of(mine.whole, theirs.whole), mine.without.map((s, i) => of(s, theirs.without[i])), true);
  }

  function workers(total, state) {
    const each = Math.floor((state.deadline * 3600 / total) * (1 + 1e-12));
    return each ? Math.ceil(state.rollouts / each) : Infinity;
  }

  const grouped = (value, digits) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  function short(value) {
    const size = Math.abs(value);
    if (!Number.isFinite(value)) return "not enough time";
    return size >= 99.95 ? grouped(value, 0) : size >= 9.995 ? grouped(value, 1) : grouped(value, 2);
  }
  const duration = (s) => Math.abs(s) >= 1 ? short(s) + " s" : Math.abs(s) >= 1e-4 ? short(s * 1e3) + " ms" : short(s * 1e6) + " us";
  const shown = (one, as) => as(one.value) + (one.low === undefined ? "" : " [" + as(one.low) + " to " + as(one.high) + "]");
  const scaled = (one, factor) => ({ value: one.value * factor, low: one.low === undefined ? undefined : one.low * factor, high: one.high === undefined ? undefined : one.high * factor });
  const whole = (value) => (Number.isFinite(value) ? grouped(value, 0) : "none is enough: one rollout takes longer");

  function crossing(a, b) {
    const first = line(sums(a, a.ids).whole), second = line(sums(b, b.ids).whole);
    const fixed = second.fixed - first.fixed, each = second.each - first.each;
    const length = -fixed / each;
    if (each === 0 && fixed === 0) return "they cost the same at every length";
    if (!(length >= 1 && Number.isFinite(length))) return fixed + each > 0 ? "A is cheaper at every length" : "B is cheaper at every length";
    return (each < 0 ? "B" : "A") + " is cheaper above " + short(length) + " actions, " + (each < 0 ? "A" : "B") + " below";
  }

  function read() {
    const state = {};
    for (const [name, [least, most]] of Object.entries(numbers)) {
      const value = form.elements[name].valueAsNumber;
      const good = Number.isFinite(value) && value >= least && value <= most && (name !== "actions" || Number.isInteger(value));
      form.elements[name].setAttribute("aria-invalid", String(!good));
      if (!good) return null;
      state[name] = value;
    }
    state.a = form.elements.a.value;
    state.b = form.elements.b.value;
    return state;
  }

  function show() {
    const state = read();
    out("wrong").hidden = state !== null;
    if (state === null) return;
    const a = rows.get(state.a), b = rows.get(state.b);
    const perHour = state.rollouts / 3600;
    for (const [id, row] of [["a", a], ["b", b]]) {
      const total = time(row, state);
      const composed = row.measured === state.actions ? "" : " (composed)";
      out(id + "-name").textContent = state[id];
      out(id + "-time").textContent = shown(total, duration) + composed;
      out(id + "-hours").textContent = shown(scaled(total, perHour), short);
      out(id + "-workers").textContent = whole(workers(total.value, state));
    }
    const more = difference(a, b, state);
    out("difference").textContent = more === null ? "no block has both" : shown(scaled(more, perHour), short) + " worker-hours";
    out("crossing").textContent = crossing(a, b);
    out("command").textContent = "excise project RESULTS --actions " + state.actions + " --rollouts " + state.rollouts +
      " --think " + state.think + " --failure-rate " + state.fail / 100 + " --deadline " + state.deadline + "h";
    return state;
  }

  function write() {
    const state = show();
    if (state) history.replaceState(null, "", "#" + new URLSearchParams(Object.entries(state).map(([k, v]) => [k, String(v)])));
  }

  // An address that names a place in the page has no "=" and leaves the calculator alone.
  function restore() {
    const text = location.hash.slice(1);
    if (!text.includes("=")) return;
    const asked = new URLSearchParams(text);
    for (const name of [...Object.keys(numbers), "a", "b"]) {
      const value = asked.get(name);
      if (value === null) continue;
      if (name in numbers ? value.trim() !== "" && Number.isFinite(Number(value)) : rows.has(value)) form.elements[name].value = value;
    }
    show();
    document.getElementById("calculator").scrollIntoView();
  }

  form.addEventListener("input", write);
  form.addEventListener("submit", (event) => { event.preventDefault(); write(); });
  window.addEventListener("hashchange", restore);
  form.hidden = false;
  show();
  restore();
})();
