"""A soak as a picture: an SVG of lines over time, with the faults behind them. Nothing but Python is needed."""

import html

WIDTH, LEFT, RIGHT, HEIGHT, GAP, TOP = 1_000, 90, 34, 110, 26, 46
MB = 1 << 20
# Title, unit, what a sample's value is divided by, and the lines.
PANELS = (
    ("requests a second", "", 1, (("rate", "requests"),)),
    ("memory of the daemon's own", "MiB", MB, (("own_bytes", "anonymous"),)),
    ("descriptors and threads", "", 1, (("descriptors", "descriptors"), ("threads", "threads"))),
    ("slots", "", 1, (("evictable", "readable"), ("in_use", "in use"), ("writing", "being written"), ("limbo", "in limbo"))),
    ("jobs and leases of engines", "", 1, (("jobs", "jobs"), ("leases", "leases"))),
    ("disk", "MiB", MB, (("nvme_bytes", "blocks"), ("catalog_bytes", "catalog"))),
    ("bucket", "MiB", MB, (("bucket_bytes", "allocated"),)),
    ("breakers: 0 in use, 1 probing, 2 off", "", 1, (("breaker_nvme", "NVMe"), ("breaker_object", "object"))),
)
# More than the picture is wide would not be seen.
MOST_SAMPLES = 600
COLOURS = ("#1f5fa8", "#c8541c", "#3b8a3e", "#8a3b86")
SHADES = {"disk": "#f6d9c4", "files": "#f3cfd6", "clock": "#cfe9e6", "server": "#d6e3f3", "network": "#dcd6f0", "memory": "#f3e6b5", "daemon": "#e3e3e3", "engine": "#d8ecd5"}


def draw(samples, faults):
    """`samples`: dictionaries with `s` (seconds) and what PANELS name, less what could not be had. `faults`: `kind`, `from` and `to`."""
    samples = [dict(sample) for sample in samples[:: -(-len(samples) // MOST_SAMPLES) or 1]]
    for before, sample in zip(samples, samples[1:]):
        sample["rate"] = max(sample["requests"] - before["requests"], 0) / max(sample["s"] - before["s"], 1e-9)
    end = max([sample["s"] for sample in samples] + [1.0])
    across = lambda seconds: LEFT + (WIDTH - LEFT - RIGHT) * seconds / end
    height = TOP + len(PANELS) * (HEIGHT + GAP) + 24
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
           f'font-family="sans-serif" font-size="11"><rect width="{WIDTH}" height="{height}" fill="white"/>']
    at = LEFT
    for name, shade in SHADES.items():
        out.append(f'<rect x="{at}" y="8" width="12" height="12" fill="{shade}"/><text x="{at + 17}" y="18">{name}</text>')
        at += 90
    for number, (title, unit, scale, lines) in enumerate(PANELS):
        top = TOP + number * (HEIGHT + GAP)
        out += [f'<rect x="{across(fault["from"]):.1f}" y="{top}" width="{max(across(fault["to"]) - across(fault["from"]), 0.5):.1f}" height="{HEIGHT}" '
                f'fill="{SHADES.get(fault["kind"].split(":")[0], "#eeeeee")}"><title>{html.escape(fault["kind"])}</title></rect>' for fault in faults]
        highest = max([sample.get(key, 0) / scale for sample in samples for key, _ in lines] + [1e-9]) * 1.05
        out.append(f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT}" fill="none" stroke="#999999"/>')
        for share in (0, 0.5, 1):
            value, down = highest * share, top + HEIGHT * (1 - share)
            out.append(f'<text x="{LEFT - 6}" y="{down + 4:.1f}" text-anchor="end">{value:,.0f}</text>')
        legend = LEFT + 6
        out.append(f'<text x="{legend}" y="{top - 5}" font-weight="bold">{html.escape(title)}{", " + unit if unit else ""}</text>')
        legend += 7 * len(title) + 60
        for colour, (key, label) in zip(COLOURS, lines):
            out.append(f'<text x="{legend}" y="{top - 5}" fill="{colour}">{html.escape(label)}</text>')
            legend += 7 * len(label) + 20
            out += [f'<polyline fill="none" stroke="{colour}" stroke-width="1.2" points="{points}"/>' for points in _runs(samples, key, scale, highest, across, top)]
    for share in (0, 0.25, 0.5, 0.75, 1):
        out.append(f'<text x="{across(end * share):.1f}" y="{height - 8}" text-anchor="middle">{end * share / 60:.3g} min</text>')
    return "\n".join(out) + "\n</svg>\n"


def _runs(samples, key, scale, highest, across, top):
    """The line, broken where there is no value."""
    run = []
    for sample in [*samples, {}]:
        if key in sample:
            run.append(f'{across(sample["s"]):.1f},{top + HEIGHT * (1 - sample[key] / scale / highest):.1f}')
        elif run:
            yield " ".join(run)
            run = []
