"""The look of drawings: the graph of an explanation, the map of clusters, the history of clusters, the slider of
versions.

Invariant: as in `look.py`; a drawing uses the colours that are set there.
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
.hw-map circle{stroke:var(--hw-card);stroke-width:calc(.5px/var(--zoom,1));r:calc(4px/pow(var(--zoom,1),.75));cursor:pointer}
.hw-map circle[data-cluster=""]{r:calc(2.6px/pow(var(--zoom,1),.75))} .hw-map circle:hover{fill-opacity:1;stroke:var(--hw-text)}
.hw-map.has-marked circle:not(.marked){fill-opacity:.18}
.hw-map text{font-size:calc(12px/var(--zoom,1));font-weight:650;paint-order:stroke;stroke:var(--hw-ground);
stroke-width:calc(4px/var(--zoom,1));stroke-linejoin:round;cursor:pointer}
.hw-map .lasso{fill:var(--hw-wash);stroke:var(--hw-accent);stroke-width:calc(1.5px/var(--zoom,1))}
.hw-zoom{position:relative;width:100%} .hw-zoom-stage{border-radius:.5rem;overflow:hidden;cursor:grab;user-select:none}
.hw-zoom-stage:active{cursor:grabbing} .hw-zoom-stage.selecting{cursor:crosshair}
.hw-zoom-stage{touch-action:pan-x pan-y} .hw-zoom-stage.zoomed,.hw-zoom-stage.selecting{touch-action:none}
.hw-zoom-tools{display:flex;gap:.35rem;flex-wrap:wrap;margin-bottom:.5rem}
.hw-zoom-tools button{font:inherit;font-size:.85rem;min-width:2rem;padding:.15rem .6rem;border:1px solid var(--hw-line);
border-radius:.4rem;background:var(--hw-card);color:var(--hw-text);cursor:pointer}
.hw-zoom-tools button:hover,.hw-zoom-tools button[aria-pressed=true]{background:var(--hw-wash);border-color:var(--hw-accent)}
.hw-zoom-hint{position:absolute;max-width:min(20rem,60%);background:var(--hw-card);color:var(--hw-text);z-index:5;
border:1px solid var(--hw-line);border-radius:.4rem;padding:.25rem .5rem;font-size:.85rem;pointer-events:none;
overflow-wrap:anywhere}
@media (max-width:600px){.hw-lines:not(:has(.hw-cell)) :is(td,th):first-child{position:sticky;left:0;background:var(--hw-card)}}
svg.hw-plot{display:block;width:100%;min-width:640px;height:auto;margin-top:.75rem;border-radius:.5rem}
svg.hw-plot text{fill:#14181c}
svg.hw-river{display:block;width:100%;height:auto} .hw-river polygon{fill-opacity:.72;stroke:var(--hw-card);stroke-width:1}
.hw-river a:hover polygon{fill-opacity:1} .hw-river a:focus-visible{outline:none}
.hw-river a:focus-visible polygon{stroke:var(--hw-text);stroke-width:2.5}
.hw-river .name{font-size:12px;font-weight:650;pointer-events:none;paint-order:stroke;stroke:var(--hw-card);stroke-width:4px}
.hw-river .axis text{font-size:11px;fill:var(--hw-muted)}
a.hw-leads{color:inherit} a.hw-leads:hover{border-color:var(--hw-accent);text-decoration:none}
.hw-flat{margin:0} p.hw-flat+p.hw-flat{margin-top:.25rem} .hw-cell{white-space:normal!important;min-width:14rem}
.hw-dots{list-style:none;margin:0;padding:0;display:grid;gap:.15rem 1.5rem;
grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr))} .hw-dots li{display:flex;gap:.5rem;align-items:baseline}
.hw-dots a{text-decoration:underline} .hw-river .shown{stroke:var(--hw-text);stroke-dasharray:3 4}
.hw-dot{flex:none;width:.7rem;height:.7rem;border-radius:50%}
.hw-as-of{display:flex;flex-wrap:wrap;gap:.5rem 1rem;align-items:center;width:100%} .hw-as-of input{flex:1 1 16rem;min-width:0}
.hw-changes{margin:.25rem 0;padding-left:1.2rem} .hw-changes a{text-decoration:underline}
.hw-as-of input{accent-color:var(--hw-accent);height:1.5rem} tr[aria-current] td{background:var(--hw-wash);font-weight:600}
"""
