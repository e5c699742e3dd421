"""Chromium without a window, controlled through its DevTools protocol over two pipes."""
import base64
import json
import os
import shutil
import subprocess

PROGRAM = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')


class Browser:
    """One page. complaints: messages of the console and errors of scripts; requests: addresses that were asked for."""

    def __init__(self, profile, width, height, dark=False):
        to_browser, self.out = os.pipe()
        self.into, from_browser = os.pipe()
        # The protocol's descriptors are 3 and 4. A shell puts them there.
        self.process = subprocess.Popen(
            ['bash', '-c', f'exec "$@" 3<&{to_browser} 4>&{from_browser}', 'bash', PROGRAM, '--headless', '--no-sandbox', '--disable-gpu',
             '--disable-dev-shm-usage', '--no-first-run', '--remote-debugging-pipe', f'--user-data-dir={profile}', 'about:blank'],
            pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.rest, self.n, self.session, self.complaints, self.requests, self.loaded = b'', 0, None, [], [], False
        target = self.call('Target.createTarget', url='about:blank')['targetId']
        self.session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in 'Page', 'Runtime', 'Log', 'Network':
            self.call(domain + '.enable')
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call('Emulation.setFocusEmulationEnabled', enabled=True)
        self.call('Emulation.setTouchEmulationEnabled', enabled=width < 600)
        self.call('Performance.enable', timeDomain='threadTicks')
        self.call('Emulation.setEmulatedMedia', features=[{'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}])

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.into)

    def receive(self):
        while b'\0' not in self.rest:
            got = os.read(self.into, 1 << 16)
            if not got:
                raise EOFError('chromium ended')
            self.rest += got
        message, self.rest = self.rest.split(b'\0', 1)
        message = json.loads(message)
        what, about = message.get('method'), message.get('params', {})
        if what in ('Runtime.consoleAPICalled', 'Runtime.exceptionThrown', 'Log.entryAdded'):
            self.complaints.append(json.dumps(about)[:500])
        elif what == 'Network.requestWillBeSent' and not about['request']['url'].startswith('data:'):
            self.requests.append(about['request']['url'])
        elif what == 'Page.loadEventFired':
            self.loaded = True
        return message

    def call(self, method, **params):
        self.n += 1
        message = {'id': self.n, 'method': method, 'params': params}
        if self.session:
            message['sessionId'] = self.session
        data = json.dumps(message).encode() + b'\0'
        while data:
            data = data[os.write(self.out, data):]
        while True:
            answer = self.receive()
            if answer.get('id') == self.n:
                if 'error' in answer:
                    raise RuntimeError(f'{method}: {answer["error"]}')
                return answer['result']

    def load(self, address):
        self.loaded = False
        self.call('Page.navigate', url=address)
        while not self.loaded:
            self.receive()

    def value(self, expression):
        """The value of a JavaScript expression, or of the promise that it is."""
        answer = self.call('Runtime.evaluate', expression=expression, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in answer:
            raise RuntimeError(f'{expression}: {answer["exceptionDetails"]}')
        return answer['result'].get('value')

    def busy_s(self):
        """CPU seconds of the page's main thread."""
        return {metric['name']: metric['value'] for metric in self.call('Performance.getMetrics')['metrics']}['TaskDuration']

    def mouse(self, kind, x, y):
        self.call('Input.dispatchMouseEvent', type=kind, x=x, y=y, button='none' if kind == 'mouseMoved' else 'left', clickCount=1)

    def tap(self, x, y):
        self.call('Input.dispatchTouchEvent', type='touchStart', touchPoints=[{'x': x, 'y': y}])
        self.call('Input.dispatchTouchEvent', type='touchEnd', touchPoints=[])

    def key(self, key):
        for kind in 'rawKeyDown', 'keyUp':
            self.call('Input.dispatchKeyEvent', type=kind, key=key, code=key, windowsVirtualKeyCode={'Escape': 27, 'ArrowRight': 39}[key])

    def screenshot(self, path, full=False):
        answer = self.call('Page.captureScreenshot', captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(answer['data']))
