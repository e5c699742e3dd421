"""./train report: the page, what is in it, and how a browser shows it."""
import fcntl
import html.parser
import json
import pathlib
import shutil
import signal
import statistics
import subprocess
import time
import unittest

import chromium
import harness
from harness import CommandCase, restore_signals
from python_env import python_with
from runs_written import CONSTANTS, KINDS, smooth_loss, step_line, write_run

VOID = {'meta', 'link', 'input', 'br'}


class Page(html.parser.HTMLParser):
    """The page's elements; fails where one is not closed in its turn."""

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.title, self.data = [], [], '', ''
        self.feed(text)
        self.close()
        assert not self.open, self.open
        self.data = json.loads(self.data)

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get('id')))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, text):
        if self.open and self.open[-1] == ('script', 'data'):
            self.data += text
        if self.open and self.open[-1][0] == 'title':
            self.title += text


class FollowedCase(CommandCase):
    def run_under_way(self, name, steps):
        """A run folder whose lock this process holds, as a run does."""
        run = write_run(self.folder / name, steps, every=0, end=None, config={'train': {'max_steps': 2 * steps}})
        self.lock = open(run / 'lock', 'w')
        self.addCleanup(self.lock.close)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        return run

    def follow(self, *runs, every=0.2):
        process = self.start('report', *runs, '--out', 'page.html', '--follow', '--every', every, preexec_fn=restore_signals)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.page(lambda page: page['follow'] == every)
        return process

    def page(self, is_wanted):
        """The data of the first page that is so."""
        until = time.monotonic() + 60
        while True:
            if (self.folder / 'page.html').exists():
                page = Page((self.folder / 'page.html').read_text()).data
                if is_wanted(page):
                    return page
            self.assertLess(time.monotonic(), until)
            time.sleep(0.05)


def append_steps(run, *steps, **figures):
    with open(run / 'metrics.jsonl', 'a') as file:
        for step in steps:
            file.write(step_line(step, smooth_loss(step), **figures) + '\n')


class Follow(FollowedCase):
    def test_until_the_run_ends(self):
        run = self.run_under_way('run', 3000)
        process = self.follow('run')

        def read():
            return int(pathlib.Path(f'/proc/{process.pid}/io').read_text().split()[1])
        before = read()
        append_steps(run, 3001)
        (page,) = self.page(lambda page: page['runs'][0]['step'] == 3001)['runs']
        self.assertLess(read() - before, 200000)  # of a file of 3 MB
        self.assertEqual(page['state'], 'running')
        self.assertGreater(page['seconds_left'], 0)
        (run / 'new').write_text(step_line(1, 4.5) + '\n')  # a resumed run replaces the file
        (run / 'new').rename(run / 'metrics.jsonl')
        self.page(lambda page: page['runs'][0]['points']['step'] == [1])
        with open(run / 'sessions.jsonl', 'a') as file:
            file.write('{"event": "end", "wall_time": 1.7e9, "step": 1, "total": 6000, "state": "failed", "message": "disk full"}\n')
        self.lock.close()
        self.assertEqual(process.wait(60), 0)
        page = self.page(lambda page: True)
        self.assertEqual((page['follow'], page['runs'][0]['state'], page['runs'][0]['message']), (0, 'failed', 'disk full'))
        self.assertIn('report of 1 run: page.html', process.stdout.read())
        # A run that has ended is not followed.
        self.run_train('report', 'run', '--follow', '--out', 'page.html')
        self.refuses('report', 'run', '--follow', '--every', '0', says=['--every'])

    def test_a_run_that_has_not_begun(self):
        for folder in 'later', 'ready':
            process = self.start('report', folder, '--out', 'page.html', '--follow', '--every', 0.2, preexec_fn=restore_signals)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            self.assertIn(f'waiting until {folder} begins', process.stdout.readline())
            if folder == 'later':
                self.run_under_way('run', 30).rename(self.folder / folder)
                self.page(lambda page: page['follow'] == 0.2)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(60), 128 + signal.SIGINT)
        (self.folder / 'file').write_text('no folder')
        self.refuses('report', 'file', '--follow', says=['file is not a folder'])
        self.refuses('report', 'later', '--every', 3, says=['--every', '--follow'])

    def test_signals(self):
        self.run_under_way('run', 30)
        write_run(self.folder / 'other', 30)
        for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            process = self.follow('run', 'other')
            process.send_signal(number)
            self.assertEqual(process.wait(60), 128 + number)
            self.assertEqual(self.page(lambda page: True)['follow'], 0)


class Report(CommandCase):
    def report(self, *runs, out='page.html'):
        self.run_train('report', *runs, '--out', out)
        text = (self.folder / out).read_bytes().decode()
        self.assertNotRegex(text.replace('http://www.w3.org/2000/svg', ''), r'https?://|//[a-z]+\.[a-z]')  # the namespace is no address
        page = Page(text)
        for tag, name, value in page.attributes:
            if name in ('src', 'href', 'action', 'srcset'):
                self.assertRegex(value, r'^(#[a-z]+|data:,)$', f'<{tag} {name}>')
        return page

    def test_figures_and_spikes(self):
        spikes = {12345: 500.0, 17001: -3.0}
        write_run(self.folder / 'long', 20000, lambda step: spikes.get(step, smooth_loss(step)))
        write_run(self.folder / 'short', 300, config={'optimizer': {'lr': 3e-3}}, every=100, end='failed')
        with open(self.folder / 'short' / 'metrics.jsonl', 'a') as file:
            for step, score in (200, 0.25), (300, 0.5):
                file.write(json.dumps({'step': step, 'tasks': {'hellaswag': {'acc': score, 'acc_stderr': 0.01, 'items': 9}, 'odd': 3}}) + '\n')
                file.write(json.dumps({'step': step, 'val_loss': 9, 'final': step == 300, 'val_sources': [{'path': 'a-*.bin', 'val_loss': score}, 7]}) + '\n')
        long, short = self.report('long', 'short').data['runs']
        self.assertEqual((long['state'], short['state'], short['message']), ('finished', 'failed', 'no space left'))
        points = long['points']
        self.assertTrue(2000 <= len(points['step']) <= 4000, len(points['step']))
        self.assertEqual(points['step'][-1], 20000)
        for curve in 'loss', 'grad_norm', 'lr', 'tokens_per_s', 'mfu', 'step_ms', 'comm_share':
            self.assertEqual({len(points[curve][part]) for part in ('mean', 'low', 'high')}, {len(points['step'])}, curve)
        for constant in 'loss_scale', 'batch_size':
            self.assertNotIn(constant, points)
        self.assertEqual(long['noise'], {'step': [], 'tokens': [], 'hours': []})
        for step, loss in spikes.items():
            i = next(i for i, last in enumerate(points['step']) if last >= step)
            self.assertEqual(points['loss']['high' if loss > 0 else 'low'][i], loss)
        self.assertEqual((points['tokens'][-1], long['figures']['tokens']), (512 * 20000,) * 2)
        self.assertAlmostEqual(points['hours'][-1], 10000 / 3600, places=5)
        self.assertEqual(short['points']['step'], list(range(1, 301)))
        self.assertNotIn('low', short['points']['loss'])  # a step per point
        for i in 0, 150, 299:
            self.assertAlmostEqual(short['points']['loss']['mean'][i], smooth_loss(i + 1), places=3)
        self.assertEqual({name: (score['step'], score['score']['mean']) for name, score in short['scores'].items()},
                         {'hellaswag acc': ([200, 300], [0.25, 0.5]), 'validation loss of a-*.bin': ([200], [0.25])})
        self.assertEqual(short['evals']['step'], [100, 200])  # the line of step 200 came again
        figures = short['figures']
        self.assertAlmostEqual(figures['loss'], statistics.mean(smooth_loss(step) for step in range(201, 301)), places=4)
        self.assertAlmostEqual(figures['best_val_loss'], smooth_loss(300) + 0.25, places=4)
        self.assertEqual((figures['best_val_step'], figures['tokens_per_s'], figures['mfu']), (300, 1024, 0.25))
        self.assertEqual((long['figures']['val_loss'], long['figures']['bits_per_byte']), (7.5, 0.5))  # of the final evaluation, on all sequences
        self.assertEqual(short['memory'], {'planned': KINDS, 'measured': dict(KINDS, data=33)})
        self.assertEqual((short['comm']['bytes'], short['comm']['planned_bytes'], short['totals']['host']), (640, 640, 61000))
        self.assertAlmostEqual(short['time']['steps_s'], 120)
        self.assertAlmostEqual(short['time']['exposed_s'], 300 * 0.1 * 0.25)
        self.assertEqual((short['config']['optimizer.lr'], long['config']['optimizer.lr']), ('0.003', '0.001'))
        self.assertEqual((short['session']['machine'], short['session']['version'], short['session']['ranks']), ('some-host', '9.9.9', 2))

    def test_batch_size_and_noise_scale(self):
        """The curve of a batch that grows, and that of the steps that measured the noise scale."""
        measured = {10: 12.5, 20: None, 30: 40.0}
        write_run(self.folder / 'grown', 40, every=0, config={'train': {'max_steps': 40, 'label_smoothing': 0.1}}, fields=lambda step, loss: step_line(
            step, json.loads(loss), batch_size=8 if step < 32 else 16, **({'noise_scale': measured[step]} if step in measured else {})) + '\n')
        (run,) = self.report('grown').data['runs']
        self.assertEqual(run['points']['batch_size']['mean'], [8] * 31 + [16] * 9)
        self.assertEqual((run['noise']['step'], run['noise']['noise_scale']['mean']), ([10, 30], [12.5, 40]))
        self.assertEqual(run['config']['train.label_smoothing'], '0.1')

    def test_text_of_a_run_stays_text(self):
        name = 'a <b>&"\'run</script>é'.replace('/', '')
        run = write_run(self.folder / name, 3, config={'train': {'max_steps': 3, 'sample_prompt': '</script><script>alert(1)</script>'}})
        (run / 'samples').mkdir()
        (run / 'samples' / 'step-00000002.txt').write_bytes(b'<!--</script>\x00\x1b[31m\xff\xc2\x85 \xe2\x82\xac tab\there\n' + '€'.encode() * 3000)
        (run / 'samples' / 'other.txt').write_text('not a sample')
        page = self.report(name + '/')
        self.assertEqual(page.title, f'{name}: training report')
        (only,) = page.data['runs']
        self.assertEqual(only['path'], name)
        self.assertEqual(only['config']['train.sample_prompt'], '"</script><script>alert(1)</script>"')
        (sample,) = only['samples']
        self.assertEqual(sample['step'], 2)
        text = sample['text']
        self.assertTrue(text.endswith('€…'), text[-10:])  # there is more of it
        self.assertEqual(text.rstrip('€…'), '<!--</script>\ufffd\ufffd[31m\ufffd\ufffd € tab\there\n')
        self.assertGreater(len(text), 1000)
        self.assertEqual((self.folder / 'page.html').read_bytes().count(b'</script'), 2)

    def test_a_run_under_way_and_one_of_an_earlier_version(self):
        """A torn last line, steps that are repeated, losses that are not finite, and files that are absent."""
        run = self.folder / 'old'
        run.mkdir()
        lines = [step_line(1, 3.0), step_line(2, None), 'not JSON', step_line(3, 9.0), step_line(3, 2.0), step_line(4, 1.0, **CONSTANTS)]
        (run / 'metrics.jsonl').write_text('\n'.join(lines) + '\n{"step": 5, "wall_time": 17')
        (old,) = self.report('old').data['runs']
        self.assertEqual(old['points']['step'], [1, 2, 3, 4])
        self.assertEqual(old['points']['loss']['mean'], [3, None, 2, 1])
        self.assertEqual((old['memory'], old['totals']['host_planned'], old['mfu_of']),
                         ({'planned': KINDS, 'measured': dict(KINDS, data=33)}, 60000, 'measured GEMM rate'))
        notes = '; '.join(old['notes'])
        for words in 'config.json', 'sessions.jsonl', '1 lines of metrics.jsonl are damaged', 'loss of 1 steps is not a finite number':
            self.assertIn(words, notes)
        (run / 'metrics.jsonl').unlink()
        (run / 'sessions.jsonl').write_text('')
        (empty,) = self.report('old').data['runs']
        self.assertIn('there are no steps yet', empty['notes'])
        self.assertEqual(empty['points'], {'step': [], 'tokens': [], 'hours': []})

    def test_a_real_run(self):
        self.run_train(self.tiny_config(data={'val': str(self.folder / 'tokens.bin')}, train={'eval_every': 2}, run={'dir': 'run', 'profile': True}))
        self.run_train('report', 'run')
        (run,) = Page((self.folder / 'run' / 'report.html').read_text()).data['runs']
        measured = self.metrics()
        self.assertEqual(run['state'], 'finished')
        self.assertEqual(run['points']['step'], [line['step'] for line in measured])
        for mean, line in zip(run['points']['loss']['mean'], measured):
            self.assertAlmostEqual(mean, line['loss'], places=3)
        self.assertEqual(run['evals']['step'], [2, 4, 6])
        self.assertEqual(run['memory']['measured'], measured[-1]['model_memory'])
        self.assertTrue(run['session']['version'] and run['session']['device'])
        profile = run['profile']
        self.assertAlmostEqual(sum(line['share'] for line in profile['operations']), 1, places=2)
        self.assertIn('linear_forward, lm_head', [line['name'] for line in profile['operations']])

    def test_what_is_no_run(self):
        (self.folder / 'empty').mkdir()
        self.refuses('report', says=['no run named'])
        self.refuses('report', 'empty', says=['empty is not the folder of a run', 'metrics.jsonl'])
        self.refuses('report', 'absent', says=['absent is not a folder'])
        write_run(self.folder / 'good', 3)
        self.refuses('report', 'good', '--out', 'absent/page.html', code=1, says=['absent/page.html'])
        self.assertEqual(sorted(path.name for path in (self.folder / 'good').iterdir()), ['config.json', 'metrics.jsonl', 'sessions.jsonl'])


@unittest.skipUnless(harness.FULL, 'a browser: the full run only')
@unittest.skipUnless(chromium.PROGRAM, 'chromium is not installed (Debian: apt-get install chromium)')
@unittest.skipIf(harness.SANITIZERS, 'the page is the same')
class InABrowser(FollowedCase):
    def open(self, page, width=1400, height=900):
        browser = chromium.Browser(self.folder / 'profile', width, height)
        self.addCleanup(browser.close)
        browser.load((self.folder / page).as_uri())
        return browser

    def test_controls(self):
        for name, factor in ('one', 1), ('two', 1.2):
            run = write_run(self.folder / name, 2000, lambda step, factor=factor: factor * smooth_loss(step), every=200)
            (run / 'samples').mkdir()
            for step in 500, 1000:
                (run / 'samples' / f'step-{step:08}.txt').write_text(f'{name} after {step}')
        with open(self.folder / 'one' / 'metrics.jsonl', 'a') as file:
            for step in 1000, 2000:
                file.write(json.dumps({'step': step, 'tasks': {'hellaswag': {'acc': step / 4000}}}) + '\n')
        self.run_train('report', 'one', 'two', '--out', 'page.html')
        browser = self.open('page.html')
        titles = browser.value('[...document.querySelectorAll(".chart h3")].map(title => title.textContent)')
        self.assertEqual(titles, ['Training loss', 'Validation loss', 'Validation bits per byte', 'Gradient norm', 'Learning rate', 'Tokens per second',
                                  'Model FLOPs utilization', 'Step time', 'Exposed communication', 'hellaswag acc'])
        # Every chart is drawn, and described for those who do not see it.
        for i in range(len(titles)):
            browser.value(f'(document.querySelectorAll("canvas")[{i}].scrollIntoView(), new Promise(done => setTimeout(done, 100)))')
        labels = browser.value('[...document.querySelectorAll("canvas")].map(canvas => canvas.getAttribute("aria-label"))')
        self.assertTrue(all('one ends at' in label for label in labels), labels)
        self.assertIn('one ends at 0.5000', labels[-1])
        x, y = browser.value('(b => [b.left + b.width / 2, b.top + b.height / 2])((document.querySelector("canvas").scrollIntoView({block: "center"}), document.querySelector("canvas").getBoundingClientRect()))')
        browser.mouse('mouseMoved', x, y)
        tooltip = browser.value('document.getElementById("tooltip").innerText')
        for word in 'step 9', 'one', 'two', 'smoothed', 'measured', 'last validation':  # each number has its name
            self.assertIn(word, tooltip)
        self.assertNotIn('at', tooltip.split())  # both values are of that step
        browser.mouse('mousePressed', x, y)
        browser.mouse('mouseMoved', x + 60, y)
        browser.mouse('mouseReleased', x + 60, y)
        low, high = browser.value('state.zoom')
        self.assertTrue(900 < low < high < 1800, (low, high))
        self.assertFalse(browser.value('document.getElementById("reset").disabled'))
        browser.value('document.querySelector("canvas").focus()')
        browser.key('Escape')
        self.assertIsNone(browser.value('state.zoom'))
        browser.key('ArrowRight')
        self.assertIn('one', browser.value('document.getElementById("announcement").textContent'))
        for axis in 'tokens', 'hours', 'step':
            browser.value(f'document.querySelector("input[value={axis}]").click()')
            self.assertIn(axis, browser.value('new Promise(done => requestAnimationFrame(() => setTimeout(() => done(document.querySelector("canvas").getAttribute("aria-label")), 50)))'))
        for control in 'log', 'outliers', 'theme', 'theme', 'theme':
            browser.value(f'document.getElementById("{control}").click()')
        browser.value('document.querySelector("#legend button").click()')
        self.assertNotIn('one', browser.value('document.getElementById("figures-table").innerText'))
        self.assertIn('two after 1000', browser.value('document.getElementById("samples-view").innerText'))
        self.assertEqual(browser.complaints, [])
        self.assertEqual(browser.requests, [(self.folder / 'page.html').as_uri()])

    def test_a_run_that_is_followed(self):
        """The page loads itself again, and keeps its place, its controls and what is hidden."""
        run = self.run_under_way('run', 300)
        write_run(self.folder / 'other', 300)
        process = self.follow('run', 'other', every=1)
        browser = self.open('page.html')

        def wait_for(expression):
            """Its value, once that is true and the page whole."""
            found = None
            while not found:
                time.sleep(0.05)
                try:
                    found = browser.value(f'document.readyState === "complete" && ({expression})')
                except RuntimeError as error:  # it loads itself again just then
                    self.assertIn('navigated', str(error))
            return found
        wait_for('(runs[1].shown && document.querySelectorAll("#legend button")[1].click(), document.querySelector("input[value=tokens]").click(), '
                 'state.log || document.getElementById("log").click(), document.querySelector("details").open = true, setZoom([20000, 90000]), '
                 'scrollTo(0, 700), true)')
        for step in 400, 500:
            append_steps(run, step)
            kept = wait_for(f'runs[0].step === {step} && [document.getElementById("figures-table").innerText, runs.map(run => run.shown), state.axis, '
                            'state.log, state.zoom, document.querySelector("input[value=tokens]").checked, document.getElementById("log").checked, '
                            'document.querySelector("details").open, scrollY]')
            self.assertRegex(kept[0], r'running, \d+:\d\d left')
            self.assertEqual(kept[1:], [[True, False], 'tokens', True, [20000, 90000], True, True, True, 700])
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 128 + signal.SIGINT)
        self.assertEqual(wait_for('data.follow === 0 && scrollY'), 700)
        self.assertEqual(browser.complaints, [])
        self.assertEqual(set(browser.requests), {(self.folder / 'page.html').as_uri()})

    def test_charts_of_a_batch_that_grows(self):
        write_run(self.folder / 'grown', 40, every=0, config={'train': {'max_steps': 40, 'label_smoothing': 0.1, 'z_loss': 0}},
                  fields=lambda step, loss: step_line(step, json.loads(loss), batch_size=step // 20 * 8 + 8, **({'noise_scale': step} if step % 10 == 0 else {})) + '\n')
        self.run_train('report', 'grown', '--out', 'page.html')
        browser = self.open('page.html')
        browser.value('(document.querySelector("#charts").scrollIntoView({block: "end"}), new Promise(done => { const look = () => '
                      '[...document.querySelectorAll(".chart")].every(chart => !/batch size|noise/i.test(chart.querySelector("h3").textContent) || '
                      'chart.querySelector("canvas").getAttribute("aria-label")) ? done(true) : setTimeout(look, 50); look() }))')
        charts = dict(browser.value('[...document.querySelectorAll(".chart")].map(chart => [chart.querySelector("h3").textContent, '
                                    'chart.querySelector("canvas").getAttribute("aria-label")])'))
        self.assertIn('grown ends at 24', charts['Batch size'])
        self.assertIn('grown ends at 40', charts['Gradient noise scale'])
        self.assertIn('regularized', browser.value('document.querySelector(".chart .top").innerText'))
        self.assertIn('the training loss includes label smoothing 0.1; the validation loss does not', browser.value('document.getElementById("notes").innerText'))
        self.assertEqual(browser.complaints, [])

    def test_notes_of_runs_that_diverged(self):
        for name, figures in ('once', {'spikes': 1, 'skipped_steps': 1}), ('often', {'spikes': 2}), ('never', {}):
            write_run(self.folder / name, 40, every=0, fields=lambda step, loss, figures=figures: step_line(
                step, json.loads(loss), **{'spikes': 0, **(figures if step > 20 else {})}) + '\n')
        self.run_train('report', 'once', 'often', 'never', '--out', 'page.html')
        browser = self.open('page.html')
        self.assertEqual(browser.value('document.getElementById("notes").innerText').splitlines(),
                         ['once: diverged once (train.on_spike); updates skipped: 1',
                          'often: diverged 2 times (train.on_spike)'])
        self.assertEqual(browser.complaints, [])

    def test_phone(self):
        write_run(self.folder / 'a-run-with-a-name-that-is-much-too-long-for-a-phone-held-upright', 300, every=100)
        write_run(self.folder / 'b', 300, every=100)
        self.run_train('report', 'a-run-with-a-name-that-is-much-too-long-for-a-phone-held-upright', 'b', '--out', 'page.html')
        browser = self.open('page.html', 390, 800)
        self.assertEqual(browser.value('document.documentElement.scrollWidth'), 390)
        # What a tap shows stays until the next one elsewhere.
        x, y = browser.value('(b => [b.left + b.width / 2, b.top + b.height / 2])((document.querySelector("canvas").scrollIntoView({block: "center"}), document.querySelector("canvas").getBoundingClientRect()))')
        browser.value('new Promise(done => setTimeout(done, 300))')
        browser.tap(x, y)
        browser.value('new Promise(done => setTimeout(done, 300))')
        hidden = 'document.getElementById("tooltip").hidden'
        self.assertFalse(browser.value(hidden))
        self.assertIn('smoothed', browser.value('document.getElementById("tooltip").innerText'))
        left, right = browser.value('(b => [b.left, b.right])(document.getElementById("tooltip").getBoundingClientRect())')
        self.assertTrue(0 <= left < right <= 390, (left, right))
        browser.tap(*browser.value('(b => [b.left + 5, b.top + 5])(document.querySelector(".chart h3").getBoundingClientRect())'))
        self.assertTrue(browser.value(hidden))
        self.assertIn('Tap a chart', browser.value('document.querySelector("main").innerText'))
        # A table that goes on behind the edge has a shade there, which its end covers.
        self.assertIn('local', browser.value('getComputedStyle(document.querySelector("#figures-table .scroll")).backgroundAttachment'))
        self.assertEqual(browser.complaints, [])

    def test_numbers(self):
        """As the log prints them, and none as 1.00e+3K."""
        write_run(self.folder / 'run', 30)
        self.run_train('report', 'run', '--out', 'page.html')
        browser = self.open('page.html')
        for value, shown in {'short(999960)': '1M', 'short(999499)': '999K', 'short(1557611200)': '1.56B', 'short(12)': '12', 'rate(372.4e9)': '372 GFLOP/s',
                             'rate(1.9e15)': '1.9 PFLOP/s', 'bytes(1048575)': '1.00 MiB', 'bytes(512)': '512 B', 'bytes(1023.97 * 1024)': '1.00 MiB',
                             'bytes(20.25 * 2 ** 20)': '20.3 MiB'}.items():
            self.assertEqual(browser.value(value), shown, value)
        self.assertIn('100 GFLOP/s', browser.value('document.getElementById("machine-table").innerText'))
        self.assertIn('against step', browser.value('document.querySelector(".chart .top").innerText'))

    def test_twenty_runs_of_100000_steps(self):
        """At most 15 MB, open within 3 s. The main thread's own time counts, as other tests run beside this one."""
        fields = '{{"step": {0}, "wall_time": {1}, "loss": {2}, "grad_norm": {3}, "lr": {4}, "tokens": {5}, "tokens_per_s": {6}, "step_ms": 10, "mfu": {7}}}\n'
        first = write_run(self.folder / 'r0', 100000, lambda step: smooth_loss(step) + step * 7919 % 1000 / 3000,
                          fields=lambda step, loss: fields.format(step, 1.7e9 + step / 100, loss, 1 + step * 31 % 997 / 1000, 1e-3 * (1 - step / 1e5),
                                                                  step * 512, 50000 + step * 17 % 4999, 0.3 + step * 13 % 499 / 1e4))
        runs = [first.name]
        for i in range(1, 20):
            shutil.copytree(first, self.folder / f'r{i}')
            runs.append(f'r{i}')
        self.run_train('report', *runs, '--out', 'page.html')
        self.assertLessEqual((self.folder / 'page.html').stat().st_size, 15e6)
        browser = self.open('page.html')
        browser.value('new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))')
        self.assertLess(browser.busy_s(), 3)
        self.assertEqual(browser.complaints, [])

    def test_a_strict_parser(self):
        python = python_with('html5lib==1.1')
        write_run(self.folder / 'run', 30)
        self.run_train('report', 'run', '--out', 'page.html')
        subprocess.run([python, '-c', 'import html5lib, sys; html5lib.HTMLParser(strict=True).parse(open(sys.argv[1], "rb"))', self.folder / 'page.html'], check=True)


if __name__ == '__main__':
    unittest.main()
