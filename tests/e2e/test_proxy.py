"""Behind a reverse proxy with a base URL and a read time-out that is shorter than the queue."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from checks.parts.lab import Lab, free_port
from checks.parts.place import make_place
from checks.parts.suite import FULL_LENGTH

from .conftest import CLUSTER
from .notebook import SECOND, Notebook

READ_TIMEOUT_S = 60 if os.environ.get(FULL_LENGTH) else 4
QUEUED_S = 150 if os.environ.get(FULL_LENGTH) else 14
NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
CONFIGURATION = """
daemon off;
pid {root}/nginx.pid;
error_log {root}/nginx.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi;
  uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
  server {{
    listen 127.0.0.1:{port};
    location /people/ada/ {{
      proxy_pass http://127.0.0.1:{behind};
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $connection_upgrade;
      proxy_read_timeout {timeout}s;
    }}
  }}
}}
"""


class BehindAProxy(Lab):
    """The same server, addressed through the proxy by the browser."""

    outside_port = 0

    @property
    def outside(self) -> str:
        return f"http://127.0.0.1:{self.outside_port}{self.base_url}"


@pytest.fixture
def proxied(run_mark: str) -> Iterator[BehindAProxy]:
    if NGINX is None:
        pytest.skip("nginx is not installed")
    root = Path(tempfile.mkdtemp(prefix="o4s-", dir="/tmp"))
    server = BehindAProxy(make_place(root), CLUSTER, "/people/ada/")
    server.install_kernels(("default", "long"))
    server.outside_port = free_port()
    configuration = root / "nginx.conf"
    text = CONFIGURATION.format(root=root, port=server.outside_port, behind=server.port, timeout=READ_TIMEOUT_S)
    configuration.write_text(text, encoding="utf-8")
    proxy = subprocess.Popen([NGINX, "-c", str(configuration), "-p", str(root)], stdin=subprocess.DEVNULL)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        proxy.terminate()
        proxy.wait(20)
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.timeout(QUEUED_S + 120)
def test_a_kernel_that_waits_longer_than_the_proxy_is_reached(
    proxied: BehindAProxy, page: Page, wait_until: Callable[..., Any]
) -> None:
    proxied.write_notebook("first.ipynb", "default")
    first = proxied.open_session("first.ipynb", "default")
    wait_until(lambda: [each["state"] for each in proxied.alive()] == ["ready"], "the place is taken", 60)
    proxied.write_notebook("second.ipynb", "long")
    opened = Notebook(page, proxied, proxied.outside)
    opened.load("second.ipynb")
    opened.expect_missing("allocation_granted")
    opened.run("6*7")
    page.wait_for_timeout(QUEUED_S * SECOND)
    proxied.ask("DELETE", f"api/sessions/{first['id']}")
    opened.expect_ready()
    expect(opened.outputs.last).to_have_text("42", timeout=60 * SECOND)
    assert [each["epoch"] for each in proxied.alive()] == [1]
