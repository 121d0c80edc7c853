"""How drawings look: the graph of an explanation, the map of clusters, the history of clusters, the slider of versions.

Law: as in `look.py`; a drawing uses the colours that are set there.
"""

from __future__ import annotations

DRAWINGS = """
svg.hw-graph{display:block;max-width:none;flex:none} .hw-graph .step rect{fill:var(--hw-ground);stroke:var(--hw-line)}
.hw-graph a .step rect{stroke:var(--hw-accent)} .hw-graph a:hover .step rect{fill:var(--hw-wash)}
.hw-graph a:focus-visible{outline:none} .hw-graph a:focus-visible .step rect{stroke-width:3}
.hw-graph .step.missing rect{stroke:var(--hw-warn);stroke-dasharray:5 4}
.hw-graph .kind{font-size:12px;font-weight:650} .hw-graph .about{font-size:12px} .hw-graph .more{font-size:11px}
.hw-graph .more,.hw-graph .way text{fill:var(--hw-muted)} .hw-graph .way text{font-size:11px}
.hw-graph .way .line{fill:none;stroke:var(--hw-muted);stroke-width:1.3} .hw-graph .way .tip{fill:var(--hw-muted)}
"""
