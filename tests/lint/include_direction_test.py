"""Includes follow the direction of dependency: server, cli -> engine -> kvcache -> base.

Generated wire code and gRPC are for server and cli (and their tests) only.
"""

import pathlib
import tempfile
import unittest

import sources

BELOW_SERVER = ("base", "kvcache", "engine")
WIRE = ("ringfill/v1", "grpc", "grpcpp", "google")

# Folder -> what its files may include, besides itself and third-party headers. The longest matching
# folder counts.
ALLOWED = {
    "base": (),
    "kvcache": ("base",),
    "engine": ("base", "kvcache"),
    "engine/layout": ("base",),
    "engine/stream": ("base",),
    "engine/comm": ("base", "engine/stream"),
    "engine/comm/nccl": ("base", "engine/comm", "engine/compute/cuda", "engine/stream"),
    "engine/compute": ("base", "kvcache", "engine/model/token_id.h", "engine/stream"),
    "engine/compute/cpu": ("base", "kvcache", "engine/compute", "engine/model", "engine/stream"),
    "engine/compute/cuda": ("base", "kvcache", "engine/compute", "engine/model", "engine/stream"),
    "engine/model": ("base", "engine/compute"),
    "engine/request": ("base", "engine/model", "engine/schedule/step_plan.h"),
    "engine/schedule": ("base", "kvcache", "engine/layout", "engine/model/token_id.h",
                        "engine/stream"),
    "server": (*BELOW_SERVER, *WIRE),
    "cli": (*BELOW_SERVER, *WIRE),
    "bench": BELOW_SERVER,
    "tools": (*BELOW_SERVER, "tests/testing"),
    "tests/testing": BELOW_SERVER,
    "tests/cuda_emulation": ("base", "engine/compute/cuda/device_code.h",
                             "engine/compute/cuda/launch.h"),
    "tests/base": ("base", "tests/testing"),
    "tests/kvcache": ("base", "kvcache", "tests/testing"),
    "tests/engine": (*BELOW_SERVER, "tests/cuda_emulation", "tests/testing"),
    "tests/server": ("server", *BELOW_SERVER, *WIRE, "tests/testing"),
    "tests/tools": ("tools", *BELOW_SERVER, "tests/testing"),
    "tests/cli": ("cli", *BELOW_SERVER, *WIRE, "tests/testing"),
    "tests/fuzz": ("server", "cli", *BELOW_SERVER, *WIRE, "tests/testing"),
}
# What counts as ours or as wire code; all else is a third-party header, free for everyone.
KNOWN = ("base", "kvcache", "engine", "server", "cli", "tests", "bench", "tools", *WIRE)


def inside(name, folder):
    return name == folder or name.startswith(folder + "/")


def owner(name):
    """The rule that governs a file, None when there is none."""
    return max((folder for folder in ALLOWED if inside(name, folder)), key=len, default=None)


def violations(root):
    found = []
    for path in sources.files(".h", ".cc", ".cu", ".cuh", root=root):
        name = path.relative_to(root).as_posix()
        folder = owner(name)
        for line, target in sources.includes(path):
            where = f"{name}:{line}: includes {target}"
            if target.startswith("."):
                found.append(f"{where}: start from the project's root")
            elif "/" not in target and (path.parent / target).exists():
                found.append(f"{where}: start from the project's root")
            elif not any(inside(target, known) for known in KNOWN):
                continue
            elif folder is None:
                found.append(f"{where}: no rule for this folder")
            elif not any(inside(target, allowed) for allowed in (folder, *ALLOWED[folder])):
                found.append(f"{where}: {folder} may only include {folder}, "
                             + ", ".join(ALLOWED[folder]))
    return found


class IncludeDirection(unittest.TestCase):
    def test_this_tree(self):
        self.assertEqual(violations(sources.ROOT), [])

    def test_this_tree_is_seen(self):
        count = sum(len(sources.includes(path)) for path in sources.files(".h", ".cc"))
        self.assertGreater(count, 300)


class Fixtures(unittest.TestCase):
    """The check itself: small trees that must pass or fail."""

    def check(self, name, include):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True)
            path.write_text(f'// A file.\n#include "{include}"\n', encoding="utf-8")
            return violations(pathlib.Path(folder))

    def test_allowed(self):
        for name, include in (("engine/a.cc", "kvcache/b.h"), ("kvcache/a.h", "base/b.h"),
                              ("server/a.cc", "engine/b.h"), ("cli/a.cc", "ringfill/v1/x.pb.h"),
                              ("base/a.cc", "absl/status/status.h"), ("base/a.cc", "base/b.h"),
                              ("engine/model/a.cc", "engine/compute/b.h"),
                              ("tests/server/a.cc", "server/b.h")):
            self.assertEqual(self.check(name, include), [], f"{name} -> {include}")

    def test_refused(self):
        for name, include in (("base/a.h", "kvcache/b.h"), ("kvcache/a.cc", "engine/b.h"),
                              ("engine/a.cc", "server/b.h"), ("engine/a.cc", "ringfill/v1/x.pb.h"),
                              ("engine/a.cc", "grpcpp/grpcpp.h"), ("cli/a.cc", "server/b.h"),
                              ("server/a.cc", "cli/b.h"), ("engine/compute/a.cc", "engine/model/b.h"),
                              ("engine/a.cc", "tests/testing/b.h"), ("engine/a.cc", "../base/b.h"),
                              ("tests/engine/a.cc", "server/b.h"), ("tests/new/a.cc", "base/b.h")):
            with self.subTest(name=name, include=include):
                found = self.check(name, include)
                self.assertEqual(len(found), 1)
                self.assertIn(f"{name}:2: includes {include}", found[0])


if __name__ == "__main__":
    unittest.main()
