"""Start the system's Chromium for tests that open a page.

Where none is installed, such tests are skipped with a line that says how to get one. With the environment variable
``TAGSPREAD_BROWSER=required``, as in continuous integration, they fail instead.
"""

import contextlib
import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
HINT = "install Chromium (Debian: apt-get install chromium) to run the browser tests"


@contextlib.contextmanager
def chromium():
    """Yield a running browser, or skip the test that asks for one."""
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    try:
        from playwright import sync_api
    except ImportError:
        _unavailable("playwright is not installed (pip install '.[dev]')")
    if executable is None:
        _unavailable(HINT)
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=executable, args=list(ARGUMENTS))
        except sync_api.Error as error:
            _unavailable(f"Chromium does not start: {str(error).splitlines()[0]}; {HINT}")
        yield browser
        browser.close()


def _unavailable(reason):
    if os.environ.get("TAGSPREAD_BROWSER") == "required":
        pytest.fail(reason)
    pytest.skip(reason)
