"""Runs a test of this folder with the tools it needs: with_tools.py TEST.py

Fetches them when they are not there yet. When they cannot be had, says so and exits with SKIPPED.
"""

import os
import pathlib
import subprocess
import sys

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt
FETCH = pathlib.Path(__file__).resolve().parents[2] / "tools/fetch_deploy_tools.sh"


def main():
    fetched = subprocess.run([FETCH], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                             check=False)
    if fetched.returncode != 0:
        print("SKIPPED: tools/fetch_deploy_tools.sh could not fetch helm and the others")
        sys.exit(SKIPPED)
    tools = fetched.stdout.strip()
    environment = dict(os.environ, RINGFILL_DEPLOY_TOOLS=tools)
    python = f"{tools}/venv/bin/python"
    os.execve(python, [python, *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
