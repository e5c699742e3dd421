// What the other scripts of the page use: the data, the state of the controls, colors, elements, and the formatting of
// numbers.
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);
const runs = data.runs;

// Colors of the runs' lines: Okabe and Ito's palette, which readers with any color vision can tell apart, darkened for
// the light theme and lightened for the dark one. From the eighth run on, colors repeat with another dash pattern.
const PALETTE = {
  light: ['#0b62b8', '#c8500a', '#00805c', '#b0478f', '#8a6a00', '#2f9cc9', '#3d434a'],
  dark: ['#6cb2f5', '#f5904e', '#2fc997', '#e597c9', '#e6c34a', '#8fdcff', '#c9d1d9'],
};
// Colors for the segments of a bar, in an order in which neighbors differ clearly, because segments touch.
const PARTS = {
  light: ['#0b62b8', '#e08a2e', '#00805c', '#b0478f', '#8a6a00', '#5fb8e0', '#59616b', '#c8500a', '#7d6bc4', '#9fb45a'],
  dark: ['#4f9be6', '#f2a65a', '#2fc997', '#e597c9', '#c9a93a', '#8fdcff', '#8a949f', '#f0763f', '#a999f0', '#bcd178'],
};
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3]];

const state = {
  axis: 'step', smoothing: 0.9, log: false, clip: false,
  zoom: null,  // [from, to]: the shown range of the x axis; null: all of it
  cursor: null,  // value on the x axis that the pointer or a key selected; null: none
  theme: 'auto',
};

const darkQuery = matchMedia('(prefers-color-scheme: dark)');
const isDark = () => state.theme === 'dark' || (state.theme === 'auto' && darkQuery.matches);
const palette = () => PALETTE[isDark() ? 'dark' : 'light'];
const partColor = index => PARTS[isDark() ? 'dark' : 'light'][index % PARTS.light.length];
const colorOf = run => palette()[run.index % palette().length];
const dashOf = run => DASHES[Math.floor(run.index / PALETTE.light.length) % DASHES.length];
const shown = () => runs.filter(run => run.shown);

// ---- elements; text is always set as text, never as HTML

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'style') Object.assign(node.style, value);
    else if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

const byId = id => document.getElementById(id);

function swatch(run, width = 26) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  const line = document.createElementNS('http://www.w3.org/2000/svg', 'line');
  for (const [name, value] of Object.entries({class: 'swatch', viewBox: `0 0 ${width} 10`, 'aria-hidden': 'true'}))
    svg.setAttribute(name, value);
  for (const [name, value] of Object.entries({x1: 0, x2: width, y1: 5, y2: 5, stroke: colorOf(run), 'stroke-width': 3,
                                              'stroke-dasharray': dashOf(run).join(' ') || 'none'}))
    line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

const runLabel = run => element('span', {class: 'run-name', title: run.path}, swatch(run), element('span', {}, run.name));

// Returns a table. columns: [{title, number}]; number: the cells are numbers. rows: arrays of cells, each a text, a node or
// {content, class}. The first cell of a row is its header.
function table(caption, columns, rows) {
  const cellOf = (cell, index) => {
    const given = cell !== null && typeof cell === 'object' && !(cell instanceof Node) ? cell : {content: cell};
    const classes = [columns[index].number ? 'number' : '', given.class || ''].join(' ').trim();
    return element(index ? 'td' : 'th', {class: classes || null, scope: index ? null : 'row'}, given.content ?? '–');
  };
  return element('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption}, element('table', {},
    element('caption', {class: 'hidden'}, caption),
    element('thead', {}, element('tr', {}, ...columns.map(column =>
      element('th', {scope: 'col', class: column.number ? 'number' : null},
        column.title instanceof Node ? column.title.cloneNode(true) : column.title)))),
    element('tbody', {}, ...rows.map(row => element('tr', {}, ...row.map(cellOf))))));
}

// ---- numbers

const isNumber = value => typeof value === 'number' && Number.isFinite(value);
const grouped = value => Math.round(value).toLocaleString('en-US');

// Formats a number in the largest unit in which the printed value is at least 1: 999,960 is 1M, not 1000K.
function short(value, digits = 3, units = ['K', 'M', 'B', 'T']) {
  if (!isNumber(value)) return '–';
  const size = Math.abs(value);
  for (let i = units.length; i > 0; i--)
    if (size >= 1000 ** i * (1 - 0.5 * 10 ** -digits)) return trim((value / 1000 ** i).toPrecision(digits)) + units[i - 1];
  if (size === 0) return '0';
  if (size < 1e-3) return value.toExponential(digits - 1).replace(/\.?0+e/, 'e');
  return trim(value.toPrecision(digits + 1));
}

const trim = text => text.includes('.') && !text.includes('e') ? text.replace(/\.?0+$/, '') : text;
const rate = flops => short(flops, 3, [' k', ' M', ' G', ' T', ' P', ' E']) + 'FLOP/s';
const fixed = digits => value => isNumber(value) ? value.toFixed(digits) : '–';
const percent = value => isNumber(value) ? (100 * value).toFixed(1) + ' %' : '–';

function bytes(value) {
  if (!isNumber(value)) return '–';
  let unit = 0;  // the thresholds below round as text_bytes (base/text.c) does for log messages
  while (value >= 1024 - (unit ? 0.05 : 0.5) && unit < 5) value /= 1024, unit++;
  return value.toFixed(unit === 0 ? 0 : value < 9.995 ? 2 : 1) + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][unit];
}

function duration(hours) {
  if (!isNumber(hours)) return '–';
  const seconds = Math.round(hours * 3600), two = value => String(value).padStart(2, '0');
  if (seconds >= 86400) return `${Math.floor(seconds / 86400)}d ${two(Math.floor(seconds / 3600) % 24)}h`;
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)}:${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}`;
  return `${Math.floor(seconds / 60)}:${two(seconds % 60)}`;
}

const date = seconds => isNumber(seconds) && seconds > 0
  ? new Date(seconds * 1000).toLocaleString(undefined, {dateStyle: 'medium', timeStyle: 'short'}) : '–';

// Returns about `wanted` round numbers in [low, high], for the ticks of an axis.
function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted);
  if (!(raw > 0) || !isNumber(raw)) return isNumber(low) ? [low] : [];
  const power = 10 ** Math.floor(Math.log10(raw));
  const size = [1, 2, 5, 10].map(factor => factor * power).find(step => step >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / size - 1e-9); i * size <= high + size * 1e-9 && found.length < 50; i++)
    found.push(Math.abs(i * size) < size * 1e-9 ? 0 : i * size);
  return found;
}

// Like `ticks`, for a log scale: round numbers of each power of ten. If `high` is less than 8 times `low`, returns those of
// a linear scale.
function logTicks(low, high, wanted) {
  if (high / low < 8) return ticks(low, high, wanted).filter(value => value > 0);
  const factors = high / low > 1e4 ? [1] : high / low > 100 ? [1, 3] : [1, 2, 5], found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const factor of factors)
      if (factor * 10 ** power >= low * 0.999 && factor * 10 ** power <= high * 1.001) found.push(factor * 10 ** power);
  while (found.length > 2 * wanted) for (let i = found.length - 2; i > 0; i -= 2) found.splice(i, 1);
  return found;
}

// Returns the index of the last of the ascending values that is at most `value`; -1 if all are greater.
function lastUpTo(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function nearest(values, value) {
  const before = lastUpTo(values, value);
  if (before < 0) return values.length ? 0 : -1;
  const after = before + 1;
  return after < values.length && values[after] - value < value - values[before] ? after : before;
}

const axisFormats = {
  step: {name: 'steps', long: value => 'step ' + grouped(value), tick: value => value >= 10000 ? short(value) : grouped(value)},
  tokens: {name: 'tokens', long: value => short(value, 4) + ' tokens', tick: value => short(value)},
  hours: {name: 'hours', long: value => `after ${duration(value)} of training`, tick: value => trim(value.toPrecision(4))},
};

// Give each run its index and a unique name: the last folder of its path, or the whole path if two runs have the same
// last folder. Scores become members of the run, for Chart.
runs.forEach((run, index) => {
  run.index = index;
  run.shown = true;
  for (const [name, points] of Object.entries(run.scores)) run['score ' + name] = points;
  run.name = run.path.split('/').pop() || run.path;
});
for (const run of runs)
  if (runs.some(other => other !== run && other.path.split('/').pop() === run.path.split('/').pop())) run.name = run.path;
