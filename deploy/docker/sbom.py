#!/usr/bin/env python3
"""Writes what an image is made of as an SPDX 2.3 document in JSON.

Usage: sbom.py --status FILE --name NAME --version V [--wheels DIR] --out FILE

--status is the image's /var/lib/dpkg/status: every installed Debian package becomes a package of the
document. With --wheels, so do the Python packages whose *.dist-info folders lie in DIR. SOURCE_DATE_EPOCH
in the environment is the document's time, else it is now. Runs with Python's standard library alone.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import urllib.parse

UNKNOWN = "NOASSERTION"


def paragraphs(text):
    """Each paragraph of a Debian control file as {field: first line}."""
    for block in re.split(r"\n\s*\n", text):
        fields = dict(line.split(":", 1) for line in block.splitlines()
                      if line and not line[0].isspace() and ":" in line)
        if fields:
            yield {name.strip(): value.strip() for name, value in fields.items()}


def person(text):
    """A maintainer as SPDX names its suppliers."""
    match = re.fullmatch(r"(.*?)\s*<(.*)>", text)
    if not text:
        return UNKNOWN
    return f"Organization: {match[1]} ({match[2]})" if match else f"Organization: {text}"


def package(kind, name, version, url, **more):
    """A package of the document; `kind` tells two of one name apart."""
    identifier = re.sub(r"[^A-Za-z0-9.-]", "-", f"SPDXRef-{kind}-{name}-{more.pop('arch', version)}")
    return {"SPDXID": identifier, "name": name, "versionInfo": version, "downloadLocation": UNKNOWN,
            "filesAnalyzed": False, "licenseConcluded": UNKNOWN, "licenseDeclared": UNKNOWN,
            "copyrightText": UNKNOWN,
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": url}], **more}


def debian_packages(status):
    """Of the text of a dpkg status file, those that are installed."""
    for fields in paragraphs(status):
        if fields.get("Status", "").split()[-1:] != ["installed"]:
            continue
        name, version, arch = (fields[key] for key in ("Package", "Version", "Architecture"))
        source = fields.get("Source", name)
        query = {"arch": arch, "distro": "debian-12"}
        more = {"arch": arch, "supplier": person(fields.get("Maintainer", ""))}
        if "Homepage" in fields:
            more["homepage"] = fields["Homepage"]
        if source != name:
            more["sourceInfo"] = f"built from the source package {source}"
        # Ringfill's own package is of no archive.
        vendor = "ringfill" if name == "ringfill" else "debian"
        quoted = urllib.parse.quote(version, safe="")
        url = f"pkg:deb/{vendor}/{urllib.parse.quote(name)}@{quoted}?{urllib.parse.urlencode(query)}"
        yield package("deb", name, version, url, **more)


def python_packages(folder):
    """Of the *.dist-info folders."""
    for path in sorted(folder.glob("*.dist-info/METADATA")):
        fields = next(paragraphs(path.read_text(encoding="utf-8").split("\n\n", 1)[0]))
        name, version = fields["Name"], fields["Version"]
        yield package("pypi", name, version, f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
                      supplier=person(fields.get("Author", "")))


def document(name, version, packages):
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc) if epoch else \
        datetime.datetime.now(datetime.timezone.utc)
    image = {"SPDXID": "SPDXRef-image", "name": name, "versionInfo": version,
             "downloadLocation": UNKNOWN, "filesAnalyzed": False, "licenseConcluded": UNKNOWN,
             "licenseDeclared": UNKNOWN, "copyrightText": UNKNOWN,
             "primaryPackagePurpose": "CONTAINER"}
    created = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = hashlib.sha256(json.dumps([created, name, version, packages]).encode()).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{name}-{version}", "documentNamespace": f"urn:ringfill:sbom:{digest}",
        "creationInfo": {"created": created, "creators": ["Tool: ringfill-sbom"]},
        "packages": [image, *packages],
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
             "relatedSpdxElement": "SPDXRef-image"},
            *({"spdxElementId": "SPDXRef-image", "relationshipType": "CONTAINS",
               "relatedSpdxElement": each["SPDXID"]} for each in packages)],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--status", required=True, type=pathlib.Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--wheels", type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    options = parser.parse_args()
    packages = list(debian_packages(options.status.read_text(encoding="utf-8")))
    if not packages:
        parser.error(f"{options.status} lists no installed package")
    if options.wheels:
        packages += python_packages(options.wheels)
    text = json.dumps(document(options.name, options.version, packages), indent=1)
    options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
