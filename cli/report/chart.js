// Charts: each draws one line per run on a canvas. If a point stands for several steps, a band shows their minimum and
// maximum. All charts share the x axis, the zoom and the cursor.
'use strict';

const charts = [];

class Chart {
  // spec: {key, title, unit, format(value), tick(value), ...}. Its other members:
  // - from: the member of a run that has the points; key: the curve of these points that is drawn
  // - log: the chart may have a log scale
  // - zero: a linear scale includes 0
  // - raw: the line is not smoothed
  // - overlay: validation losses are drawn, too
  constructor(spec) {
    Object.assign(this, spec);
    this.smoothed = new Map();
    this.canvas = element('canvas', {tabindex: 0, role: 'img'});
    this.cursor = element('div', {class: 'cursor', hidden: ''});
    this.brush = element('div', {class: 'brush', hidden: ''});
    this.plot = element('div', {class: 'plot'}, this.canvas, this.cursor, this.brush);
    this.units = element('span', {class: 'muted'});
    this.nameUnits();
    this.box = element('div', {class: 'card chart'}, element('div', {class: 'top'}, element('h3', {}, this.title), this.units), this.plot);
    this.visible = this.stale = false;
    charts.push(this);
    this.listen();
  }

  has(run) { return this.x(run).length > 0 && this.of(run) !== undefined; }
  of(run) { return run[this.from] && run[this.from][this.key]; }
  x(run) { return (run[this.from] && run[this.from][state.axis]) || []; }

  // Returns the values of the line: an exponential moving average, if smoothed. The weight of a value decays by the factor
  // state.smoothing per 1/1000 of the x axis, not per point, so that runs with more or fewer points are smoothed alike.
  line(run) {
    const values = this.of(run).mean;
    if (this.from !== 'points' || state.smoothing === 0 || this.raw) return values;
    const key = `${state.axis} ${state.smoothing}`, kept = this.smoothed.get(run);
    if (kept && kept.key === key) return kept.line;
    const x = this.x(run), unit = (wholeRange()[1] - wholeRange()[0]) / 1000 || 1, line = new Array(values.length);
    let sum = 0, weight = 0, last = x[0];
    for (let i = 0; i < values.length; i++) {
      const decay = state.smoothing ** Math.max((x[i] - last) / unit, 0.01);
      last = x[i];
      if (!isNumber(values[i])) { line[i] = null; continue; }
      sum = sum * decay + values[i] * (1 - decay);
      weight = weight * decay + (1 - decay);
      line[i] = sum / weight;
    }
    this.smoothed.set(run, {key, line});
    return line;
  }

  // ---- ranges

  // Returns the first and the last index of the points in view, extended by one point on each side.
  view(run, range) {
    const x = this.x(run);
    return [Math.max(0, lastUpTo(x, range[0])), Math.min(x.length - 1, lastUpTo(x, range[1]) + 1)];
  }

  yRange(range) {
    const found = [], isLog = this.isLog();  // found: all values, collected only if outliers are clipped
    let low = Infinity, high = -Infinity;
    const collect = (values, begin, end) => {
      for (let i = begin; values && i <= end; i++) {
        const value = values[i];
        if (!isNumber(value) || (isLog && value <= 0)) continue;
        if (value < low) low = value;
        if (value > high) high = value;
        if (state.clip) found.push(value);
      }
    };
    for (const run of shown().filter(run => this.has(run))) {
      const [begin, end] = this.view(run, range), values = this.of(run);
      for (const one of [values.low, values.high, values.mean]) collect(one, begin, end);
      if (this.overlay && overlays()) collect(run.evals.loss && run.evals.loss.mean, 0, run.evals.step.length - 1);
    }
    if (low > high) return isLog ? [1, 10] : [0, 1];  // no values
    if (state.clip) {
      const sorted = Float64Array.from(found).sort(), cut = Math.floor(sorted.length * 0.01);
      low = sorted[cut];
      high = sorted[sorted.length - 1 - cut];
    }
    if (this.zero && !isLog) low = Math.min(0, low);
    if (isLog) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
    const margin = (high - low || Math.abs(high) || 1) * 0.05;
    return [this.zero && low === 0 ? 0 : low - margin, high + margin];
  }

  isLog() { return state.log && this.log; }

  // ---- drawing

  measure() {
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight, ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    return {width, height, ratio};
  }

  nameUnits() { this.units.textContent = (this.unit ? this.unit + ', ' : '') + 'against ' + axisFormats[state.axis].name; }

  draw() {
    const {width, height, ratio} = this.measure(), pen = this.canvas.getContext('2d'), style = getComputedStyle(document.documentElement);
    this.nameUnits();
    if (width === 0) return;
    const color = name => style.getPropertyValue('--' + name).trim();
    const range = axisRange(), [low, high] = this.yRange(range), isLog = this.isLog();
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = '12px system-ui, "Liberation Sans", sans-serif';
    const marks = (isLog ? logTicks : ticks)(low, high, 5), format = tickFormat(marks, this.tick);
    const left = Math.max(36, ...marks.map(value => pen.measureText(format(value)).width + 12));
    this.area = {left, right: width - 8, top: 8, bottom: height - 24, range};
    const {right, top, bottom} = this.area;
    const x = value => left + (right - left) * (value - range[0]) / (range[1] - range[0] || 1);
    const scale = isLog ? Math.log : value => value, bottomValue = scale(low), span = scale(high) - bottomValue || 1;
    const y = value => bottom - (bottom - top) * (scale(value) - bottomValue) / span;
    this.toX = x;
    pen.strokeStyle = color('grid');
    pen.fillStyle = color('muted');
    pen.lineWidth = 1;
    pen.textAlign = 'right';
    pen.textBaseline = 'middle';
    for (const value of marks) {
      const at = Math.round(y(value)) + 0.5;
      pen.beginPath(); pen.moveTo(left, at); pen.lineTo(right, at); pen.stroke();
      pen.fillText(format(value), left - 8, at);
    }
    pen.textBaseline = 'top';
    const across = ticks(range[0], range[1], Math.max(2, Math.floor((right - left) / 90)));
    for (const value of across) {
      pen.textAlign = x(value) > right - 20 ? 'right' : x(value) < left + 8 ? 'left' : 'center';
      pen.fillText(axisFormats[state.axis].tick(value), x(value), bottom + 8);
    }
    pen.save();
    pen.beginPath(); pen.rect(left, top - 5, right - left + 5, bottom - top + 10); pen.clip();
    const drawn = shown().filter(run => this.has(run));
    for (const run of drawn) this.drawBand(pen, run, x, y, range);
    for (const run of drawn) this.drawLine(pen, run, x, y, range);
    if (this.overlay && overlays()) for (const run of drawn) this.drawMarks(pen, run, x, y, run.evals, run.evals.loss);
    pen.restore();
    if (drawn.length === 0) {
      pen.textAlign = 'center';
      pen.fillText('no values', (left + right) / 2, (top + bottom) / 2);
    }
    this.describe(drawn);
  }

  drawBand(pen, run, x, y, range) {
    const {mean, low, high} = this.of(run), xs = this.x(run), [begin, end] = this.view(run, range);
    const isRaw = this.from === 'points' && !this.raw && state.smoothing > 0;
    if (!low && !isRaw) return;
    const valid = value => isNumber(value) && (!this.isLog() || value > 0);
    pen.strokeStyle = pen.fillStyle = colorOf(run);
    pen.globalAlpha = runs.length > 6 ? 0.1 : 0.18;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let i = begin, open = false; i <= end; i++) {  // a zigzag between the minima and maxima fills the band
      const least = low ? low[i] : mean[i], most = high ? high[i] : mean[i];
      if (!valid(least) || !valid(most)) { open = false; continue; }
      const at = x(xs[i]);
      if (open) pen.lineTo(at, y(most)); else pen.moveTo(at, y(most));
      if (low) { pen.lineTo(at, y(least)); }
      open = true;
    }
    pen.stroke();
    pen.globalAlpha = 1;
  }

  drawLine(pen, run, x, y, range) {
    const line = this.line(run), xs = this.x(run), [begin, end] = this.view(run, range);
    pen.strokeStyle = colorOf(run);
    pen.lineWidth = 1.75;
    pen.lineJoin = 'round';
    pen.setLineDash(dashOf(run));
    pen.beginPath();
    for (let i = begin, open = false; i <= end; i++) {
      if (!isNumber(line[i]) || (this.isLog() && line[i] <= 0)) { open = false; continue; }
      if (open) pen.lineTo(x(xs[i]), y(line[i]));
      else pen.moveTo(x(xs[i]), y(line[i]));
      open = true;
    }
    pen.stroke();
    pen.setLineDash([]);
    if (this.from !== 'points') this.drawMarks(pen, run, x, y, run[this.from], this.of(run));
  }

  drawMarks(pen, run, x, y, points, values) {
    if (!values || points.step.length > 150) return;
    pen.fillStyle = colorOf(run);
    pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue('--surface').trim();
    pen.lineWidth = 1.5;
    values.mean.forEach((value, i) => {
      if (!isNumber(value)) return;
      pen.beginPath(); pen.arc(x(points[state.axis][i]), y(value), points.step.length > 60 ? 2.5 : 3.5, 0, 2 * Math.PI); pen.fill(); pen.stroke();
    });
  }

  describe(drawn) {
    const last = run => [...this.of(run).mean].reverse().find(isNumber);
    const words = drawn.slice(0, 8).map(run => `${run.name} ends at ${this.format(last(run))}`);
    this.canvas.setAttribute('aria-label', `${this.title} against ${axisFormats[state.axis].name}. ${words.join('; ') || 'No values'}`);
  }

  // ---- pointer and keys

  // Returns the values of all runs near a position on the x axis, highest first: [{run, value, smooth, low, high, at, val}].
  // at: the x value of the run's nearest point; value, low, high: its mean, minimum and maximum; smooth: its smoothed value;
  // val: the last validation loss up to the position, or null.
  valuesAt(position) {
    const found = [], width = axisRange()[1] - axisRange()[0];
    for (const run of shown().filter(one => this.has(one))) {
      const xs = this.x(run), i = nearest(xs, position);
      if (i < 0 || Math.abs(xs[i] - position) > width / 20) continue;
      const {mean, low, high} = this.of(run);
      found.push({run, value: mean[i], smooth: this.line(run)[i], low: low && low[i], high: high && high[i], at: xs[i], val: this.overlay ? evalUpTo(run, position) : null});
    }
    return found.sort((a, b) => (b.value ?? -Infinity) - (a.value ?? -Infinity));
  }

  position(event) {
    const box = this.canvas.getBoundingClientRect(), {left, right, range} = this.area;
    const part = (event.clientX - box.left - left) / (right - left);
    return range[0] + Math.min(1, Math.max(0, part)) * (range[1] - range[0]);
  }

  listen() {
    let from = null;
    this.canvas.addEventListener('pointerdown', event => {
      if (event.button !== 0 || !this.area) return;
      from = {position: this.position(event), x: event.clientX};
      this.canvas.setPointerCapture(event.pointerId);
      setCursor(from.position, this, event);
    });
    this.canvas.addEventListener('pointermove', event => {
      if (!this.area) return;
      setCursor(this.position(event), this, event);
      if (from) this.showBrush(from.position, this.position(event));
    });
    this.canvas.addEventListener('pointerup', event => {
      const to = from && this.position(event);
      this.brush.hidden = true;
      if (from && Math.abs(event.clientX - from.x) > 8) setZoom([Math.min(from.position, to), Math.max(from.position, to)]);
      from = null;
    });
    this.canvas.addEventListener('pointercancel', () => { from = null; this.brush.hidden = true; setCursor(null); });
    // On touch screens, every tap ends with a leave event, so only the leave events of a mouse hide the values. On touch
    // screens, a tap outside of the charts hides them (page.js).
    this.canvas.addEventListener('pointerleave', event => { if (!from && event.pointerType === 'mouse') setCursor(null); });
    this.canvas.addEventListener('dblclick', () => setZoom(null));
    this.canvas.addEventListener('blur', () => setCursor(null));
    this.canvas.addEventListener('keydown', event => this.press(event));
  }

  showBrush(from, to) {
    const a = this.toX(Math.min(from, to)), b = this.toX(Math.max(from, to));
    Object.assign(this.brush.style, {left: a + 'px', width: b - a + 'px', top: this.area.top + 'px', height: this.area.bottom - this.area.top + 'px'});
    this.brush.hidden = false;
  }

  press(event) {
    const range = axisRange(), width = range[1] - range[0], center = state.cursor ?? (range[0] + range[1]) / 2;
    const steps = {ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10};
    if (event.key in steps) setCursor(Math.min(range[1], Math.max(range[0], center + steps[event.key] * width / 100)), this, null);
    else if (event.key === 'Home' || event.key === 'End') setCursor(range[event.key === 'Home' ? 0 : 1], this, null);
    else if (event.key === '+' || event.key === '=') setZoom([center - width / 4, center + width / 4]);
    else if (event.key === '-') setZoom([center - width, center + width]);
    else if (event.key === 'Escape' || event.key === '0') { setZoom(null); setCursor(null); }
    else return;
    event.preventDefault();
  }

  refresh() {
    if (!this.stale || !this.visible) return;
    this.stale = false;
    this.draw();
    this.placeCursor();
  }

  placeCursor() {
    const {range, top, bottom} = this.area || {};
    const visible = state.cursor !== null && this.area && state.cursor >= range[0] && state.cursor <= range[1];
    this.cursor.hidden = !visible;
    if (visible) Object.assign(this.cursor.style, {left: this.toX(state.cursor) + 'px', top: top + 'px', height: bottom - top + 'px'});
  }
}

// Returns true if the runs are few enough to draw validation losses in the chart of training losses, too.
const overlays = () => runs.length <= 6;

function evalUpTo(run, position) {
  if (!run.evals.loss) return null;
  const i = lastUpTo(run.evals[state.axis], position);
  return i < 0 ? null : run.evals.loss.mean[i];
}

// Returns a function that formats the ticks of the y axis, with as many digits as neighboring ticks need to differ.
//   given   the chart's own function, if it has one
function tickFormat(marks, given) {
  if (given) return given;
  const gap = marks.length > 1 ? Math.min(...marks.slice(1).map((mark, i) => mark - marks[i])) : Math.abs(marks[0]) || 1;
  const greatest = Math.max(...marks.map(Math.abs));
  if (greatest >= 10000 || (greatest < 0.001 && greatest > 0)) return value => short(value, 3);
  const digits = Math.min(6, Math.max(0, -Math.floor(Math.log10(gap) + 1e-9)));
  return value => value.toFixed(digits);
}

// ---- the shared x axis

let whole = {};
function wholeRange() {
  const key = state.axis + shown().map(run => run.index).join();
  if (whole.key !== key) {
    const last = shown().flatMap(run => [run.points, run.evals]).map(points => points[state.axis].at(-1) ?? 0);
    whole = {key, range: [0, Math.max(...last, 0) || 1]};
  }
  return whole.range;
}

const axisRange = () => state.zoom || wholeRange();

function setZoom(range) {
  const [from, to] = wholeRange();
  if (range) {
    range = [Math.max(from, range[0]), Math.min(to, range[1])];
    if (range[1] - range[0] < (to - from) * 1e-5) return;
    if (range[0] <= from && range[1] >= to) range = null;
  }
  state.zoom = range;
  byId('reset').disabled = !range;
  redraw();
}

let pending = false;
function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    for (const chart of charts) { chart.stale = true; chart.refresh(); }
  });
}

// Charts are drawn only when they come near the visible part of the page.
const seen = new IntersectionObserver(entries => {
  for (const entry of entries) {
    const chart = charts.find(one => one.canvas === entry.target);
    chart.visible = entry.isIntersecting;
    chart.refresh();
  }
}, {rootMargin: '200px'});
window.addEventListener('beforeprint', () => { for (const chart of charts) { chart.draw(); } });

// Moves the cursor of all charts to a position on the x axis, and shows the values of one chart there.
//   position   null: hide the cursor and the values
//   event      the pointer event beside which the values are shown; null if a key was pressed: show them beside the cursor
function setCursor(position, chart, event) {
  state.cursor = position;
  for (const one of charts) one.placeCursor();
  if (position === null) byId('tooltip').hidden = true;
  else showValues(chart, position, event);
}

const MOST_VALUES = 24;  // maximum number of runs in the table of values, so that it fits into the browser's window

// Returns the table of values that is shown beside the cursor: one row per run, and one column per kind of number. Empty
// columns are left out.
function valueTable(chart, values) {
  const {long} = axisFormats[state.axis], smooths = values.some(({value, smooth}) => smooth !== value);
  const isRange = ({low, high}) => isNumber(low) && low !== high;
  const columns = [
    [smooths ? 'smoothed' : chart.title, ({value, smooth}) => chart.format(smooth ?? value)],
    [values.some(isRange) ? 'measured, least – greatest' : 'measured',
     one => isRange(one) ? `${chart.format(one.low)} – ${chart.format(one.high)}` : smooths ? chart.format(one.value) : ''],
    ['last validation', ({val}) => isNumber(val) ? chart.format(val) : ''],
    ['at', ({at}) => at === values[0].at ? '' : long(at)],
  ].filter(([, text], i) => i === 0 || values.some(text));
  return element('table', {}, element('tr', {class: 'muted'}, element('td', {colspan: 2}), ...columns.map(([name]) => element('td', {}, name))),
    ...values.slice(0, MOST_VALUES).map(one => element('tr', {}, element('td', {}, swatch(one.run, 18)), element('td', {class: 'name'}, one.run.name),
      ...columns.map(([, text], i) => element('td', {class: i ? 'muted' : null}, text(one))))));
}

function showValues(chart, position, event) {
  const values = chart.valuesAt(position), tooltip = byId('tooltip');
  if (values.length === 0) { tooltip.hidden = true; return; }
  const {long} = axisFormats[state.axis], more = values.length - MOST_VALUES;
  tooltip.replaceChildren(element('div', {class: 'muted'}, long(values[0].at)), valueTable(chart, values),
    more > 0 ? element('div', {class: 'muted'}, `and ${more} more run${more === 1 ? '' : 's'}, with lower values`) : '');
  tooltip.hidden = false;
  const box = chart.canvas.getBoundingClientRect(), size = tooltip.getBoundingClientRect();
  const x = event ? event.clientX : box.left + chart.toX(position), y = event ? event.clientY : box.top + 20;
  const right = x + 16 + size.width > window.innerWidth ? x - 16 - size.width : x + 16;
  tooltip.style.left = Math.max(4, right) + 'px';
  tooltip.style.top = Math.max(4, Math.min(y + 14, window.innerHeight - size.height - 4)) + 'px';
  if (!event) byId('announcement').textContent = `${axisFormats[state.axis].long(values[0].at)}: ` +
    values.map(({run, value}) => `${run.name} ${chart.format(value)}`).join(', ');
}
