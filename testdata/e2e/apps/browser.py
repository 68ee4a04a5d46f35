"""People's work with applications in Chromium: browser.py SCENARIO URL BASE SCREENSHOTS [KEY=VALUE]...

SCENARIO is a function below, URL the application, BASE the domain that the cookie YTCypressCookie is set for; its value is
in $COOKIE. Whatever the application's pages ask for must be on its own host and be answered, or the scenario names it.
"""

import os
import re
import sys
import urllib.parse

from playwright.sync_api import expect, sync_playwright

PATIENCE = 40_000  # ms: the machine may be busy


class Visit:
    """One page, and what was asked for and complained of while it was open."""

    def __init__(self, scenario, url, base, screenshots, *options):
        self.scenario, self.url, self.base, self.screenshots = scenario, url, base, screenshots
        self.options = dict(o.split("=", 1) for o in options)
        self.host = urllib.parse.urlsplit(url).netloc
        self.strangers, self.failures, self.complaints, self.sockets = [], [], [], []

    def watch(self, page):
        page.set_default_timeout(PATIENCE)
        page.on("request", self.asked)
        page.on("response", self.answered)
        page.on("requestfailed", lambda r: self.failures.append(f"{r.method} {r.url}: {r.failure}"))
        page.on("websocket", self.connected)
        page.on("console", lambda m: m.type == "error" and self.complaints.append(m.text))
        page.on("pageerror", lambda e: self.complaints.append(str(e)))
        return page

    def asked(self, request):
        to = urllib.parse.urlsplit(request.url)
        if to.scheme not in ("data", "blob", "about", "chrome-error") and to.netloc != self.host:
            self.strangers.append(request.url)

    def answered(self, response):
        if response.status >= 400:
            reason = response.headers.get("x-yt-taskproxy-error", "the job")
            self.failures.append(f"{response.request.method} {response.url}: {response.status} ({reason})")

    def connected(self, socket):
        self.sockets.append(socket)
        if urllib.parse.urlsplit(socket.url).netloc != self.host:
            self.strangers.append(socket.url)
        socket.on("socketerror", lambda e: self.failures.append(f"{socket.url}: {e}"))

    def shot(self, page, name):
        page.screenshot(path=os.path.join(self.screenshots, f"{self.scenario}-{name}-{self.base}.png"))


def http_server(v, page):
    page.goto(v.url)
    expect(page.locator("h1")).to_contain_text("Directory listing")
    v.shot(page, "listing")
    page.get_by_role("link", name="sub/").click()
    page.wait_for_url(v.url + "sub/")
    page.get_by_role("link", name="hello, world.txt").click()
    expect(page.locator("body")).to_contain_text("hello from a job")
    assert page.url == v.url + "sub/hello%2C%20world.txt", page.url
    page.goto(v.url + "sub")  # it redirects to sub/
    assert page.url == v.url + "sub/", page.url
    v.shot(page, "sub")


def jupyter(v, page):
    page.goto(v.url + "lab?reset")  # nothing of what was open before
    page.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
    cell = page.locator(".jp-Notebook .cm-content").first
    for _ in range(10):  # a notebook that is still being made takes the focus away
        cell.click()
        page.keyboard.type("import os\nprint('the answer is', 6 * 7, 'in', os.environ['YT_TASK_NAME'])")
        if "os.environ['YT_TASK_NAME'])" in cell.inner_text():
            break
        page.keyboard.press("Control+a")
        page.keyboard.press("Delete")
    page.keyboard.press("Shift+Enter")
    output = page.locator(".jp-OutputArea-output").first
    expect(output).to_contain_text("the answer is 42 in jupyter", timeout=PATIENCE)
    # Output that comes bit by bit.
    page.keyboard.type("import time\nfor i in range(5):\n    print('tick', i, flush=True); time.sleep(0.2)")
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".jp-OutputArea-output").nth(1)).to_contain_text("tick 4", timeout=PATIENCE)
    v.shot(page, "cells")
    with page.expect_response(lambda r: r.request.method == "PUT" and ".ipynb" in r.url) as saved:
        page.keyboard.press("Control+s")  # with Jupyter's own token against forged requests
        page.get_by_role("button", name="Rename and Save").click()
    assert saved.value.status == 200, saved.value.status
    kernels = [s for s in v.sockets if "/channels" in s.url]
    assert kernels, f"no WebSocket to a kernel among {[s.url for s in v.sockets]}"


def streamlit(v, page):
    page.goto(v.url)
    expect(page.get_by_text("The count is 0.")).to_be_visible(timeout=PATIENCE)
    for n in (1, 2, 3):
        page.get_by_role("button", name="Add one").click()
        expect(page.get_by_text(f"The count is {n}.")).to_be_visible(timeout=PATIENCE)
    page.locator("input[type=file]").set_input_files({"name": "numbers.bin", "mimeType": "application/octet-stream", "buffer": bytes(300_000)})
    expect(page.get_by_text("numbers.bin has 300000 bytes.")).to_be_visible(timeout=PATIENCE)
    v.shot(page, "counter")
    assert any("/_stcore/stream" in s.url for s in v.sockets), "no WebSocket to Streamlit"


def spark(v, page):
    page.goto(v.url)  # it redirects to /jobs/
    assert page.url == v.url + "jobs/", page.url
    job = page.get_by_role("link", name="collect at", exact=False).first
    for _ in range(30):  # the page does not change by itself, and the driver has just started
        if job.is_visible():
            break
        page.wait_for_timeout(1000)
        page.reload()
    v.shot(page, "jobs")
    links = page.locator("a[href]").evaluate_all("all => all.map(a => a.href)")
    foreign = [l for l in links if urllib.parse.urlsplit(l).scheme in ("http", "https") and urllib.parse.urlsplit(l).netloc != v.host]
    assert not foreign, f"links to other hosts: {foreign}"
    for tab, path in (("Stages", "stages/"), ("Storage", "storage/"), ("Environment", "environment/"), ("Executors", "executors/"), ("SQL / DataFrame", "SQL/"), ("Jobs", "jobs/")):
        page.locator(".navbar").get_by_role("link", name=tab).click()
        page.wait_for_url(v.url + path)
        page.wait_for_load_state("networkidle")
        if tab == "Executors":
            expect(page.locator("#active-executors-table")).to_contain_text("driver")
            v.shot(page, "executors")
    job.click()
    page.wait_for_url(re.compile(re.escape(v.url) + "jobs/job/"))
    page.locator("#job-dag-viz, .expand-dag-viz").first.click()
    expect(page.locator("#dag-viz-graph svg").first).to_be_visible(timeout=PATIENCE)
    v.shot(page, "job")


def refused(v, page):
    """Whoever may not pass gets a small page with the status that is asked for."""
    answer = page.goto(v.url)
    assert answer.status == int(v.options["status"]), answer.status
    v.shot(page, v.options["status"])
    v.failures.clear()
    v.complaints.clear()


def hostile(v, page):
    """A stranger's page, on a sibling host, tries to use its visitor's cookie at the service called victim."""
    victim = v.options["victim"]
    page.goto(v.url)
    attempts = page.evaluate(
        """async victim => {
        const outcome = {};
        const attempt = async (name, f) => { try { outcome[name] = await f() } catch (e) { outcome[name] = 'error: ' + e.message } };
        const post = {method: 'POST', credentials: 'include', mode: 'no-cors', headers: {'Content-Type': 'text/plain'}, body: '{}'};
        await attempt('read', () => fetch(victim + 'read', {credentials: 'include'}).then(r => r.text()));
        await attempt('get without looking', () => fetch(victim + 'get', {credentials: 'include', mode: 'no-cors'}).then(r => r.type));
        await attempt('post without looking', () => fetch(victim + 'post', post).then(r => r.type));
        await attempt('post json', () => fetch(victim + 'json', {...post, mode: 'cors', headers: {'Content-Type': 'application/json'}}).then(r => r.text()));
        await attempt('image', () => new Promise(done => { const i = new Image(); i.onload = () => done('loaded'); i.onerror = () => done('refused'); i.src = victim + 'image' }));
        await attempt('script', () => new Promise(done => { const s = document.createElement('script'); s.onload = () => done('loaded'); s.onerror = () => done('refused'); s.src = victim + 'script'; document.head.append(s) }));
        await attempt('websocket', () => new Promise(done => { const s = new WebSocket(victim.replace('http', 'ws') + 'socket'); s.onopen = () => done('open'); s.onerror = () => done('refused') }));
        await attempt('beacon', async () => navigator.sendBeacon(victim + 'beacon', 'x'));
        await attempt('frame', () => new Promise(done => { const f = document.createElement('iframe'); f.onload = () => done('something'); f.src = victim + 'frame'; document.body.append(f) }));
        return outcome;
    }""",
        victim,
    )
    for name, outcome in attempts.items():
        print(f"{name}: {outcome}")
    assert attempts["websocket"] == "refused" and attempts["image"] == "refused" and attempts["script"] == "refused", attempts
    assert attempts["read"].startswith("error") and attempts["post json"].startswith("error"), attempts
    v.shot(page, "frame")
    # A form that takes the whole window along.
    page.evaluate("victim => { const f = document.createElement('form'); f.method = 'POST'; f.action = victim + 'form'; document.body.append(f); f.submit() }", victim)
    page.wait_for_url(victim + "form")
    expect(page.locator("body")).not_to_contain_text("the job's answer")
    v.shot(page, "form")
    # A link is what a stranger may have.
    page.goto(v.url)
    page.evaluate("victim => { location = victim + 'link' }", victim)
    page.wait_for_url(victim + "link")
    v.shot(page, "link")
    v.strangers.clear()
    v.failures.clear()
    v.complaints.clear()


def main():
    v = Visit(*sys.argv[1:])
    split = urllib.parse.urlsplit(v.url)
    with sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=os.environ["CHROMIUM"],
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--host-resolver-rules=MAP *.{v.base} 127.0.0.1:{split.port}"],
        )
        context = browser.new_context(viewport={"width": 1200, "height": 800})
        if cookie := os.environ.get("COOKIE"):
            context.add_cookies([{"name": "YTCypressCookie", "value": cookie, "domain": "." + v.base, "path": "/", "httpOnly": True}])
        page = v.watch(context.new_page())
        try:
            globals()[v.scenario](v, page)
        except BaseException:
            v.shot(page, "failed")
            print(f"at {page.url}\nstrangers: {v.strangers}\nfailures: {v.failures}\ncomplaints: {v.complaints}", file=sys.stderr)
            raise
        finally:
            browser.close()
    ignored = re.compile(v.options.get("ignore", "(?!)"))
    for kind, all_of in (("asked of strangers", v.strangers), ("failed", v.failures), ("complained of", v.complaints)):
        for one in dict.fromkeys(all_of):
            if not ignored.search(one):
                print(f"{kind}: {one}")


if __name__ == "__main__":
    main()
