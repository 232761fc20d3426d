"""Ask whether a pinned package has a known vulnerability: `python .ci/audit.py [REQUIREMENTS]`, constraints.txt by default.

pip-audit asks the database of osv.dev. Exit 0: nothing is known, or there is no network, which is said in one line.
Exit 1: a finding that `.ci/audit-ignore.txt` does not name, or a file that cannot be audited. Exit 2: a mistake there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
AWAY = re.compile(
    r"ConnectionError|Could not connect|connection timed out|Max retries|Temporary failure|ProxyError|403 Client", re.I
)
SECONDS = 15
"""To wait for one answer."""


def ignored(path: Path) -> dict[str, str]:
    """Identifier -> why it does not concern us, from lines `ID reason`. Raises ValueError."""
    reasons: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        identifier, _, reason = line.strip().partition(" ")
        if not reason.strip():
            raise ValueError(
                f"{path.name}:{number} ignores {identifier} without a reason; write it behind the identifier"
            )
        reasons[identifier] = reason.strip()
    return reasons


def main(requirements: Path, ignore: Path, url: str | None) -> int:
    """Returns the exit code."""
    try:
        reasons = ignored(ignore)
    except (OSError, ValueError) as error:
        print(f"dependency audit: {error}", file=sys.stderr)
        return 2
    command = [
        sys.executable, "-m", "pip_audit", "--requirement", str(requirements), "--no-deps", "--disable-pip",
        "--vulnerability-service", "osv", *(["--osv-url", url] if url else []), "--format", "json",
        "--progress-spinner", "off", "--timeout", str(SECONDS), *(f"--ignore-vuln={each}" for each in reasons),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        if AWAY.search(done.stderr):
            print(f"dependency audit: did not run, the database of vulnerabilities cannot be reached ({last[:160]})")
            return 0
        print(f"dependency audit: {requirements.name} could not be audited: {last[:500]}", file=sys.stderr)
        return 1
    skipped = [each["name"] for each in packages if "skip_reason" in each]
    findings = [(each, one) for each in packages for one in each.get("vulns", ())]
    for package, one in findings:
        fixed = f"fixed in {', '.join(one['fix_versions'])}" if one["fix_versions"] else "no version fixes it yet"
        names = ", ".join([one["id"], *one["aliases"]])
        print(f"dependency audit: {package['name']} {package['version']} has {names}: {fixed}", file=sys.stderr)
    rest = f"; not looked up: {', '.join(skipped)}" if skipped else ""
    print(f"dependency audit: {len(packages)} packages, {len(findings)} findings, {len(reasons)} ignored{rest}")
    return 1 if findings else 0


if __name__ == "__main__":
    given = Path(sys.argv[1]) if sys.argv[1:] else HERE.parent / "constraints.txt"
    sys.exit(main(given, HERE / "audit-ignore.txt", os.environ.get("FINERY_OSV_URL")))
