"""The C programs are built before a wheel, or an editable install, is made; without a compiler it is one without them."""

import shutil
import subprocess
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Programs(BuildHookInterface):  # pyright: ignore[reportMissingTypeArgument]
    """Runs `make programs`, which says so where there is no compiler."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if shutil.which("make") is None:
            self.app.display_warning("no make: the substrates namespace and +guest will be missing")
            return
        subprocess.run(["make", "programs"], cwd=self.root, check=True)
