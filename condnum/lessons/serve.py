"""`make teach`: Voilà for a class, on 127.0.0.1 with a token; visitors cannot run code."""

from pathlib import Path
from typing import Any

from tornado.web import RedirectHandler
from traitlets.config import Config
from voila.app import Voila
from voila.shutdown_kernel_handler import VoilaShutdownKernelHandler

#: Seconds without a connected page after which a kernel (750 MB) ends, and between two looks.
IDLE, LOOK = 300, 60
START_PAGE = "0_start.ipynb"


class ShutdownHandler(VoilaShutdownKernelHandler):
    """Ends the kernel of a page opened by its address: without an `_xsrf` cookie Voilà answers 403."""

    def check_xsrf_cookie(self) -> None:
        """Ask for no cookie."""


class Lessons(Voila):
    """Voilà with the settings of a class; each can be changed on the command line."""

    def initialize(self, argv: list[str] | None = None) -> None:
        """Take the settings of a class, then those of the command line."""
        settings = {
            "Voila": {"ip": "127.0.0.1", "auto_token": True},
            "VoilaConfiguration": {"progressive_rendering": True, "show_tracebacks": True},
            "MappingKernelManager": {"cull_idle_timeout": IDLE, "cull_interval": LOOK},
        }
        self.update_config(Config(settings))
        super().initialize(argv)

    def setup_template_dirs(self) -> None:
        """Put our template, Voilà's without its links to a CDN, in front."""
        super().setup_template_dirs()
        self.template_paths.insert(0, str(Path(__file__).parent / "voila"))

    def init_handlers(self) -> list[Any]:
        """Exchange the handler that ends kernels; open the start page, where there is one, not a list."""
        ours = {VoilaShutdownKernelHandler: ShutdownHandler}
        theirs = [(at, ours.get(handler, handler), *rest) for at, handler, *rest in super().init_handlers()]
        if not (Path(self.root_dir) / START_PAGE).is_file():
            return theirs
        target = {"url": f"{self.server_url}voila/render/{START_PAGE}", "permanent": False}
        return [(self.server_url, RedirectHandler, target), *theirs]


if __name__ == "__main__":
    Lessons.launch_instance()
