"""Review a run in the browser: the page, its queue of images, and the answers that people gave."""
