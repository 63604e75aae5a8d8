"""The C extension of otel_bridge.context, and files of other folders; the rest is in pyproject.toml."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

SOURCES = Path("otel_bridge/context/src")
FLAGS = ["-std=c11", "-O2", "-D_GNU_SOURCE", "-fvisibility=hidden", "-Wall", "-Wextra"]

# TLS descriptors: OTEP 4947 prefers them, and with them glibc can give the symbol a fixed place. AArch64
# compilers use them by default.
TLS_DESCRIPTORS = "-mtls-dialect=gnu2"


SHIPPED = Path("otel_bridge/bundle/shipped")
"""In a wheel; `otel_bridge.shipped.FOLDERS` names the same folders."""
FOLDERS = {
    "dashboards/generated": "*.json",
    "alerts": "runbook.md",
    "alerts/generated": "**/*.yaml",
    "alerts/rules": "*.yaml",
    "collector-config": "*/*.yaml",
}


class BuildShipped(build_py):
    """Puts dashboards, rules and configurations, which lie beside the package, into the wheel."""

    def run(self) -> None:
        """Build the package, then copy."""
        super().run()
        if self.editable_mode:
            return
        for source, target in self._copies().items():
            self.mkpath(str(target.parent))
            shutil.copyfile(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:  # noqa: FBT001, FBT002 (setuptools')
        """With what is copied."""
        return [*super().get_outputs(include_bytecode), *map(str, self._copies().values())]

    def _copies(self) -> dict[Path, Path]:
        top = Path(self.build_lib) / SHIPPED
        return {
            path: top / path
            for folder, pattern in FOLDERS.items()
            for path in sorted(Path(folder).glob(pattern))
        }


class BuildContext(build_ext):
    """Asks the compiler for TLS descriptors where it knows them."""

    def build_extension(self, ext: Extension) -> None:
        """Build one extension."""
        if self.compiler.compiler_type == "unix" and self._accepts(TLS_DESCRIPTORS):
            ext.extra_compile_args = [*ext.extra_compile_args, TLS_DESCRIPTORS]
        super().build_extension(ext)

    def _accepts(self, flag: str) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "empty.c"
            source.touch()
            command = [*self.compiler.compiler_so, flag, "-c", str(source), "-o", os.devnull]
            # The compiler that is about to build the extension.
            return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603


record = Extension(
    "otel_bridge.context._record",
    sources=[str(path) for path in sorted(SOURCES.glob("*.c"))],
    depends=[str(path) for path in sorted(SOURCES.glob("*.h"))],
    extra_compile_args=FLAGS,
    extra_link_args=["-Wl,-z,now"],
    # Without a C compiler the package still installs; otel_bridge.context.status() then says what is missing.
    optional=True,
)

setup(
    cmdclass={"build_ext": BuildContext, "build_py": BuildShipped},
    ext_modules=[record] if sys.platform == "linux" else [],
)
