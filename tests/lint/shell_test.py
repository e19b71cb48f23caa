"""All shell scripts pass shellcheck. Skipped where there is none."""

import shutil
import subprocess
import sys

import sources


def main():
    tool = shutil.which("shellcheck")
    if tool is None:
        print("SKIPPED: no shellcheck")
        sys.exit(sources.SKIPPED)
    files = [str(path) for path in sources.files(".sh")] + [str(sources.ROOT / ".ci/run")]
    files += [str(sources.ROOT / "packaging/debian" / name) for name in ("postinst", "postrm", "prerm")]
    sys.exit(subprocess.run([tool, "-x", "-P", "SCRIPTDIR", *files], check=False).returncode)


if __name__ == "__main__":
    main()
