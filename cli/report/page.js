// The sections of the page: figures, curves, time, memory, samples, configuration, machine.
'use strict';

const redrawn = [];  // functions that redraw the sections; `update` calls them
function section(id, make) {
  const draw = () => byId(id).replaceChildren(...[make()].flat().filter(Boolean));
  redrawn.push(draw);
  draw();
}
const note = text => element('p', {class: 'notice muted'}, text);

// ---- final figures

const least = values => Math.min(...values.filter(isNumber));

function figures() {
  const best = {loss: least(runs.map(run => run.figures.loss)), val: least(runs.map(run => run.figures.best_val_loss))};
  const cell = (value, text, isBest) => ({content: text, class: runs.length > 1 && value === isBest ? 'best' : ''});
  const columns = ['Run', 'State', 'Steps', 'Tokens', 'Time', 'Loss', 'Best val', 'at step', 'Last val', 'Bits/byte', 'Tokens/s', 'MFU', 'Memory']
    .map((title, i) => ({title, number: i > 1}));
  const means = element('p', {class: 'muted'}, 'Loss: mean of the last 100 steps. Tokens/s, of all ranks, and MFU: means of all steps. Last val and bits/byte: of the last evaluation; ' +
    'best val: of those in training, which may be on less text. Memory: of the GPU of rank 0, else of the largest rank\'s process.');
  return [table('Final figures of each run', columns, shown().map(run => {
    const {figures: f} = run;
    const total = run.total > run.step ? `${grouped(run.step)} of ${grouped(run.total)}` : grouped(run.step);
    const left = isNumber(run.seconds_left) ? `, ${duration(run.seconds_left / 3600)} left` : '';
    return [runLabel(run), {content: run.state + left, class: 'state-' + run.state.replace(' ', '-')}, total, short(f.tokens), duration(f.hours),
            cell(f.loss, fixed(4)(f.loss), best.loss), cell(f.best_val_loss, fixed(4)(f.best_val_loss), best.val),
            f.best_val_step ? grouped(f.best_val_step) : '–', fixed(4)(f.val_loss), fixed(4)(f.bits_per_byte), short(f.tokens_per_s), percent(f.mfu),
            bytes(run.totals.device || run.totals.host)];
  })), means];
}

const times = n => n === 1 ? 'once' : `${grouped(n)} times`;
// Returns a list with a note about spikes of the loss or the gradient norm (train.on_spike); empty if there were none.
const divergence = ({spikes, skipped_steps: skipped}) =>
  spikes > 0 ? [`diverged ${times(spikes)} (train.on_spike)${skipped > 0 ? `; updates skipped: ${grouped(skipped)}` : ''}`] : [];

// Options that make the training loss differ from the plain cross entropy. The values in run.config are JSON text.
const LOSS_OPTIONS = [['label smoothing', 'train.label_smoothing'], ['z-loss', 'train.z_loss'], ['dropout', 'train.dropout']];
const included = run => LOSS_OPTIONS.filter(([, option]) => Number(run.config[option]) > 0).map(([name, option]) => `${name} ${run.config[option]}`);
const lossNote = run => included(run).length ? [`the training loss includes ${included(run).join(', ')}; the validation loss does not`] : [];

function notes() {
  const found = shown().flatMap(run => [...(run.message ? [`failed: ${run.message}`] : []), ...divergence(run.figures), ...lossNote(run), ...run.notes]
    .map(text => [run, text]));
  return found.length ? element('ul', {}, ...found.map(([run, text]) => element('li', {}, `${run.name}: ${text}`))) : null;
}

// ---- curves

const CHARTS = [
  {key: 'loss', title: 'Training loss', unit: 'nats per token' + (runs.some(run => included(run).length) ? ', regularized: see the notes' : ''), format: fixed(4), log: true, from: 'points', overlay: true},
  {key: 'loss', title: 'Validation loss', unit: 'nats per token', format: fixed(4), log: true, from: 'evals'},
  {key: 'bits', title: 'Validation bits per byte', unit: 'bits', format: fixed(4), log: true, from: 'evals'},
  {key: 'grad_norm', title: 'Gradient norm', unit: 'before clipping', format: value => short(value, 3), log: true, from: 'points'},
  {key: 'lr', title: 'Learning rate', unit: '', format: value => isNumber(value) ? value.toExponential(2) : '–', tick: value => short(value, 2),
   log: true, from: 'points', zero: true, raw: true},
  {key: 'tokens_per_s', title: 'Tokens per second', unit: 'all ranks', format: value => short(value), from: 'points', zero: true},
  {key: 'mfu', title: 'Model FLOPs utilization', unit: 'of the ' + [...new Set(runs.map(run => run.mfu_of))].join(' or '), format: percent, tick: value => Math.round(100 * value) + ' %', from: 'points', zero: true},
  {key: 'step_ms', title: 'Step time', unit: 'milliseconds', format: value => short(value), from: 'points', zero: true},
  {key: 'comm_share', title: 'Exposed communication', unit: 'share of the step', format: percent, tick: value => Math.round(100 * value) + ' %',
   from: 'points', zero: true},
  {key: 'batch_size', title: 'Batch size', unit: 'sequences per step', format: value => short(value), log: true, from: 'points', zero: true, raw: true},
  {key: 'noise_scale', title: 'Gradient noise scale', unit: 'sequences', format: value => short(value), log: true, from: 'noise', zero: true},
  {key: 'loss_scale', title: 'Loss scale', unit: 'fp16', format: value => short(value), log: true, from: 'points', raw: true},
];

// Returns the specs of one chart for each task and data source that any run evaluated during training. core.js made
// their points the members 'score NAME' of the runs.
const scoreCharts = () => [...new Set(runs.flatMap(run => Object.keys(run.scores)))].map(name => (
  {key: 'score', title: name, unit: 'in training', format: fixed(4), log: true, from: 'score ' + name}));

function curves() {
  for (const spec of [...CHARTS, ...scoreCharts()]) {
    const chart = new Chart(spec);
    if (runs.some(run => run[spec.from] && run[spec.from][spec.key])) {
      byId('charts').append(chart.box);
      seen.observe(chart.canvas);
    } else charts.pop();
  }
  if (charts.length === 0) byId('charts').append(note('These runs have no steps yet.'));
}

// ---- bars

// Returns a row of a bar chart: a label, the bar, and its value.
const barRow = (label, drawn, amount) => element('div', {class: 'bar-row'}, element('div', {class: 'label'}, ...[label].flat()), drawn,
                                                 element('div', {class: 'amount'}, ...[amount].flat()));

// Returns a bar of segments. parts: [[name, value, color index]]; scale: the value of a full bar.
function bar(parts, scale, format, thin) {
  const label = parts.map(([name, value]) => `${name} ${format(value)}`).join(', ');
  return element('div', {class: thin ? 'bar thin' : 'bar', role: 'img', 'aria-label': label, title: label}, ...parts.filter(part => part[1] > 0).map(([, value, color]) =>
    element('i', {style: {width: 100 * value / scale + '%', background: partColor(color)}})));
}

const keys = names => element('div', {class: 'keys'}, ...names.map((name, i) =>
  element('span', {}, element('i', {style: {background: partColor(i)}}), name)));

const TIME_PARTS = ['computing', 'exposed communication', 'evaluation, samples, checkpoints, start'];

function timeShares() {
  const timed = shown().filter(run => run.figures.hours > 0);
  if (timed.length === 0) return note('No times are recorded.');
  const shares = ({figures: {hours}, time}) => {
    const steps = time.steps_s / 3600, exposed = time.exposed_s / 3600;
    return [steps - exposed, exposed, Math.max(0, hours - steps)].map(value => value / hours);
  };
  const columns = ['Run', ...TIME_PARTS, 'in all'].map((title, i) => ({title, number: i > 0}));
  return [element('div', {class: 'card'}, element('h3', {}, 'Share of the time'), element('div', {class: 'bars'}, ...timed.map(run => {
    const parts = shares(run);
    return barRow(runLabel(run), bar(parts.map((value, i) => [TIME_PARTS[i], value, i]), Math.max(1, parts[0] + parts[1]), percent), duration(run.figures.hours));
  })), keys(TIME_PARTS)), element('details', {}, element('summary', {}, 'Time as a table'), table('Share of the time of each run', columns,
    timed.map(run => [runLabel(run), ...shares(run).map(percent), duration(run.figures.hours)])))];
}

function pickRun(label, candidates, chosen, choose) {
  const select = element('select', {'aria-label': label, onchange: event => choose(candidates[event.target.selectedIndex])},
    ...candidates.map(run => element('option', run === chosen ? {selected: ''} : {}, run.name)));
  return candidates.length > 1 ? select : element('span', {class: 'muted'}, chosen.name);
}

let profiled = null;
function operations() {
  const candidates = shown().filter(run => run.profile);
  if (candidates.length === 0) return note('Time per operation: none of these runs was profiled; run.profile=true times every operation of the first steps.');
  if (!candidates.includes(profiled)) profiled = candidates[0];
  const {steps, step_ms: whole, operations: lines} = profiled.profile, most = Math.max(...lines.map(line => line.ms));
  const pick = pickRun('Run of the profile', candidates, profiled, run => { profiled = run; byId('operations').replaceChildren(operations()); });
  return element('div', {class: 'card'}, element('div', {class: 'row apart'}, element('h3', {}, 'Time per operation'), pick),
    element('p', {class: 'muted'}, `Mean of ${steps} profiled steps of rank 0, ${whole.toFixed(2)} ms each: time, share of the step, and how close it comes to the machine's GEMM rate or memory bandwidth.`),
    element('div', {class: 'bars'}, ...lines.map(line => barRow(
      line.name, bar([[line.name, line.ms, 0]], most, value => value.toFixed(3) + ' ms', true),
      [`${line.ms.toFixed(3)} ms · ${percent(line.share)}`,
       element('span', {class: 'limit'}, isNumber(line.of_limit) ? ` · ${line.of_limit.toFixed(2)} of ${line.limit}` : '')]))));
}

// ---- memory and communication

function memory() {
  const known = shown().filter(run => run.memory);
  if (known.length === 0) return note('No memory is recorded.');
  const kinds = [...new Set(known.flatMap(run => Object.keys(run.memory.planned).concat(Object.keys(run.memory.measured))))];
  const total = kept => Object.values(kept).reduce((sum, value) => sum + value, 0);
  const scale = Math.max(...known.flatMap(run => [total(run.memory.planned), total(run.memory.measured)])) || 1;
  const parts = kept => kinds.map((kind, i) => [kind, kept[kind] || 0, i]);
  const row = (what, kept, name) => barRow([name, element('span', {class: 'hidden'}, what)], bar(parts(kept), scale, bytes), `${bytes(total(kept))} ${what}`);
  const cards = [element('div', {class: 'card'}, element('h3', {}, 'Model memory of rank 0 by kind'), element('div', {class: 'bars'}, ...known.flatMap(run =>
    [row('planned', run.memory.planned, runLabel(run)), row('measured', run.memory.measured, '')])), keys(kinds))];
  const both = (planned, measured) => planned === measured ? bytes(measured) : `${bytes(measured)} (planned ${bytes(planned)})`;
  const columns = [{title: 'Run'}, ...kinds.map(kind => ({title: kind, number: true})), {title: 'process, largest rank', number: true}, {title: 'GPU', number: true}];
  cards.push(element('details', {}, element('summary', {}, 'Memory as a table'), table('Memory by kind: measured, and planned where it differs', columns,
    known.map(run => [runLabel(run), ...kinds.map(kind => both(run.memory.planned[kind] || 0, run.memory.measured[kind] || 0)),
      both(run.totals.host_planned, run.totals.host), run.totals.device || run.totals.device_planned ? both(run.totals.device_planned, run.totals.device) : '–']))));
  return cards;
}

function communication() {
  const sending = shown().filter(run => run.comm.bytes > 0 || run.comm.planned_bytes > 0);
  if (sending.length === 0) return note('Communication: one rank each, nothing is sent.');
  const columns = ['Run', 'Sent per step', 'Planned', 'Calls', 'Calls planned', 'Time, last step', 'Hidden behind compute'].map((title, i) => ({title, number: i > 0}));
  return [element('p', {class: 'muted'}, 'What rank 0 sends per step, and the plan:'), table('Bytes that rank 0 sends per step, and the plan', columns, sending.map(run => [runLabel(run), bytes(run.comm.bytes), bytes(run.comm.planned_bytes),
    grouped(run.comm.calls), grouped(run.comm.planned_calls), isNumber(run.comm.ms) ? run.comm.ms.toFixed(2) + ' ms' : '–', percent(run.comm.hidden)]))];
}

// ---- samples

let sampleStep = null;
function samples() {
  const known = shown().filter(run => run.samples.length > 0);
  if (known.length === 0) return note('No samples were written; train.sample_every sets how often.');
  const steps = [...new Set(known.flatMap(run => run.samples.map(sample => sample.step)))].sort((a, b) => a - b);
  const chosen = sampleStep === null ? steps.length - 1 : Math.max(0, lastUpTo(steps, sampleStep));
  const shownTexts = element('div', {class: 'texts'}), output = element('output', {class: 'muted', for: 'sample-step'});
  const show = index => {
    output.textContent = 'step ' + grouped(steps[index]);
    shownTexts.replaceChildren(...known.map(run => {
      const i = lastUpTo(run.samples.map(sample => sample.step), steps[index]), sample = run.samples[Math.max(0, i)];
      return element('div', {class: 'card'}, element('div', {class: 'row apart'}, runLabel(run), element('span', {class: 'muted'}, 'step ' + grouped(sample.step))),
                     element('pre', {tabindex: 0, 'aria-label': `Sample of ${run.name}`}, sample.text || '(empty)'));
    }));
  };
  const slider = element('input', {id: 'sample-step', type: 'range', min: 0, max: steps.length - 1, value: chosen,
    oninput: event => { sampleStep = steps[event.target.value]; show(Number(event.target.value)); }});
  show(chosen);
  return [steps.length > 1 ? element('label', {class: 'control', for: 'sample-step'}, 'After ', slider, output) : null, shownTexts];
}

// ---- configuration, machine

const OWN = ['run.dir'];  // options that are not compared, because they always differ

function configuration() {
  const known = shown().filter(run => Object.keys(run.config).length > 0);
  if (known.length === 0) return note('No config.json can be read.');
  const options = [...new Set(known.flatMap(run => Object.keys(run.config)))];
  const several = known.length > 1;
  const differing = options.filter(option => !OWN.includes(option) && (several
    ? known.some(run => run.config[option] !== known[0].config[option])
    : option in data.defaults && known[0].config[option] !== data.defaults[option]));
  const rows = names => names.map(option => [element('code', {}, option), ...known.map(run => ({content: element('code', {}, run.config[option] ?? '–'), class: 'value'}))]);
  const columns = [{title: 'Option'}, ...known.map(run => ({title: runLabel(run)}))];
  const title = several ? 'Options that differ' : 'Options that are not at their default';
  return [differing.length ? element('p', {class: 'muted'}, title + ':') : null,
          differing.length ? table(title, columns, rows(differing)) : note(several ? 'The configurations are the same.' : 'All options are at their defaults.'),
          element('details', {}, element('summary', {}, `All ${options.length} options`), table('All options', columns, rows(options)))];
}

function machine() {
  const session = run => run.session || {};
  const facts = [
    ['Version', run => session(run).version], ['Machine', run => session(run).machine], ['Device', run => session(run).device],
    ['Compute type', run => session(run).compute], ['Ranks', run => session(run).ranks && String(session(run).ranks)],
    ['Threads per rank', run => session(run).threads && String(session(run).threads)],
    ['GEMM rate of all ranks, at the start', run => session(run).gemm_flops > 0 ? rate(session(run).gemm_flops) : null],
    ['Dense peak of all ranks', run => session(run).dense_peak > 0 ? rate(session(run).dense_peak) : null],
    ['MFU is relative to', run => run.mfu_of], ['Parameters', run => session(run).parameters > 0 ? short(session(run).parameters, 4) : null],
    ['First started', run => date(run.began)], ['Last step', run => date(run.last_wall)],
    ['Starts', run => run.sessions ? String(run.sessions) : null], ['Folder', run => run.path],
  ];
  return table('Machine and version of the last start', [{title: ''}, ...shown().map(run => ({title: runLabel(run)}))],
    facts.filter(([, of]) => shown().some(of)).map(([name, of]) => [name, ...shown().map(run => ({content: of(run) || '–', class: 'value'}))]));
}

// ---- controls

function legend() {
  return runs.map(run => element('button', {type: 'button', 'aria-pressed': String(run.shown), title: run.path + ' (double-click: only this one)',
    onclick: () => { run.shown = !run.shown; if (!runs.some(one => one.shown)) runs.forEach(one => { one.shown = true; }); update(); },
    ondblclick: () => { runs.forEach(one => { one.shown = one === run; }); update(); }}, swatch(run), element('span', {}, run.name)));
}

// Redraws all sections and charts, after the set of shown runs or the theme has changed. Resets the zoom. The focus stays
// on the same button of the legend.
function update() {
  const focused = [...byId('legend').children].indexOf(document.activeElement);
  state.zoom = null;
  byId('reset').disabled = true;
  for (const draw of redrawn) draw();
  redraw();
  if (focused >= 0) byId('legend').children[focused].focus();
}

const THEMES = ['auto', 'light', 'dark'];
function setTheme(theme) {
  state.theme = theme;
  document.documentElement.dataset.theme = isDark() ? 'dark' : 'light';
  byId('theme').textContent = 'Theme: ' + theme;
}

function controls() {
  for (const input of document.querySelectorAll('input[name="axis"]'))
    input.addEventListener('change', () => { state.axis = input.value; setCursor(null); setZoom(null); });
  byId('smoothing').addEventListener('input', event => {
    state.smoothing = Number(event.target.value);
    byId('smoothing-value').textContent = state.smoothing.toFixed(2);
    redraw();
  });
  byId('log').addEventListener('change', event => { state.log = event.target.checked; redraw(); });
  byId('outliers').addEventListener('change', event => { state.clip = event.target.checked; redraw(); });
  byId('reset').addEventListener('click', () => setZoom(null));
  byId('theme').addEventListener('click', () => { setTheme(THEMES[(THEMES.indexOf(state.theme) + 1) % 3]); update(); });
  darkQuery.addEventListener('change', () => { setTheme(state.theme); update(); });
  window.addEventListener('resize', redraw);
  window.addEventListener('scroll', () => { byId('tooltip').hidden = true; }, {passive: true});
  document.addEventListener('pointerdown', event => { if (!charts.some(chart => chart.canvas === event.target)) setCursor(null); });
}

// ---- following runs: the page reloads itself; the reader's choices are kept in the browser history

function keep() {
  history.replaceState({state: {...state, cursor: null}, sampleStep, hidden: runs.filter(run => !run.shown).map(run => run.path),
                        open: [...document.querySelectorAll('details')].map(one => one.open), y: window.scrollY}, '');
}

function follow() {
  // Do not reload while the reader presses a pointer or has selected text, nor in a hidden tab.
  if (document.hidden || document.querySelector(':active') || !getSelection().isCollapsed) return;
  keep();
  location.reload();
}

const kept = history.state;
if (kept) {
  Object.assign(state, kept.state);
  sampleStep = kept.sampleStep;
  for (const run of runs) run.shown = !kept.hidden.includes(run.path);
  document.querySelector(`input[value="${state.axis}"]`).checked = true;
  byId('smoothing').value = state.smoothing;
  byId('smoothing-value').textContent = state.smoothing.toFixed(2);
  byId('log').checked = state.log;
  byId('outliers').checked = state.clip;
  byId('reset').disabled = !state.zoom;
}

setTheme(state.theme);
byId('subtitle').textContent = `${runs.length === 1 ? runs[0].path : runs.length + ' runs'} · ${date(data.made)} · zero.c ${data.version}`;
controls();
curves();
if (runs.length > 1) section('legend', legend);
section('figures-table', figures);
section('notes', notes);
section('time-shares', timeShares);
section('operations', operations);
section('memory-bars', memory);
section('communication', communication);
section('samples-view', samples);
section('configuration-table', configuration);
section('machine-table', machine);
redraw();
if (kept) {
  document.querySelectorAll('details').forEach((one, i) => { one.open = kept.open[i] || false; });
  history.scrollRestoration = 'manual';
  window.scrollTo(0, kept.y);
}
if (data.follow > 0) setInterval(follow, 1000 * data.follow);
