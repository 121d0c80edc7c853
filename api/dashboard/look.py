"""The look of the dashboard: colours for light and dark, spacing, and adaptations for phones.

Invariant: text has a contrast of at least 4.5 to 1 in both modes, nothing is shown by colour alone, and focus is always
visible.
"""

from __future__ import annotations

from highwater.api.dashboard.look_drawings import DRAWINGS

# The library forbids outlines on its buttons in a late layer; an important rule in an earlier one takes precedence.
CSS = (
    """
:root{--hw-ground:#f4f6f8;--hw-card:#fff;--hw-text:#1b2127;--hw-muted:#56616d;--hw-line:#d5dbe1;--hw-accent:#0a5fb5;
--hw-good:#17692f;--hw-warn:#8a5300;--hw-bad:#b3261e;--hw-wash:#0a5fb514;color-scheme:light}
.body--dark{--hw-ground:#0f1419;--hw-card:#171d24;--hw-text:#e6eaee;--hw-muted:#a0abb7;--hw-line:#2c353f;--hw-accent:#62b0ff;
--hw-good:#4cc36a;--hw-warn:#e0a030;--hw-bad:#ff7b72;--hw-wash:#62b0ff1f;color-scheme:dark}
:root,body{--q-primary:#0a5fb5!important} body.body--dark{--q-primary:#62b0ff!important}
body.body--dark .q-btn.bg-primary .q-btn__content,body.body--dark .q-btn.bg-negative .q-btn__content{color:#0f1419}
body.body--dark{--q-negative:#ff7b72!important} p a,.hw-banner a{text-decoration:underline}
body{background:var(--hw-ground);color:var(--hw-text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
a{color:var(--hw-accent);text-decoration:none} a:hover{text-decoration:underline}
:focus-visible{outline:3px solid var(--hw-accent);outline-offset:2px}
@layer theme{.no-outline:focus-visible{outline:3px solid var(--hw-accent)!important}}
.hw-skip{position:absolute;left:-999px;top:4px;background:var(--hw-card);padding:.5rem 1rem;z-index:9999}
.hw-skip:focus{left:4px}
.nicegui-content{padding:1.25rem;gap:1rem;max-width:1400px;margin:0 auto;width:100%;align-items:stretch}
.q-header{background:var(--hw-card)!important;color:var(--hw-text)!important;border-bottom:1px solid var(--hw-line);
box-shadow:none;
padding:.35rem .75rem!important;min-height:3rem;align-items:center;gap:.5rem}
.q-drawer{background:var(--hw-card)!important;color:var(--hw-text)!important;border-right:1px solid var(--hw-line)!important;
padding:.75rem .6rem!important}
.q-drawer .nicegui-html{width:100%}
.hw-brand{font-weight:700;font-size:1.05rem;letter-spacing:-.01em;color:var(--hw-text);white-space:nowrap}
.hw-nav{display:flex;flex-direction:column;gap:2px;width:100%}
.hw-nav a{display:flex;align-items:center;gap:.6rem;padding:.45rem .6rem;border-radius:.5rem;color:var(--hw-text)}
.hw-nav a{white-space:nowrap}
.hw-nav a:hover{background:var(--hw-wash);text-decoration:none}
.hw-nav a[aria-current]{background:var(--hw-wash);color:var(--hw-accent);font-weight:600}
.hw-nav kbd{margin-left:auto;font:11px ui-monospace,monospace;color:var(--hw-muted);border:1px solid var(--hw-line);
border-radius:4px;
padding:0 .35em}
/* what is a little wider than a phone, as a long name, does not make a page scroll sideways */
.nicegui-content{overflow-x:clip} :is(h1,h2,h3).hw{overflow-wrap:anywhere}
h1.hw{font-size:1.45rem;line-height:1.2;margin:0;font-weight:700;letter-spacing:-.015em}
h2.hw{font-size:1.05rem;line-height:1.3;margin:.25rem 0 0;font-weight:650}
.hw-muted{color:var(--hw-muted)} .hw-small{font-size:.85rem}
.hw-card{background:var(--hw-card);border:1px solid var(--hw-line);border-radius:.75rem;padding:1rem;width:100%;min-width:0;
gap:.5rem}
.hw-tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:.75rem;width:100%}
.hw-tile{background:var(--hw-card);border:1px solid var(--hw-line);border-radius:.75rem;padding:.75rem 1rem;min-width:0;gap:0;
display:block}
.hw-tile b{display:block;font-size:1.5rem;line-height:1.25;font-weight:650;font-variant-numeric:tabular-nums;
overflow-wrap:anywhere}
.hw-tile span{color:var(--hw-muted);font-size:.85rem}
.hw-good{color:var(--hw-good)} .hw-warn{color:var(--hw-warn)} .hw-bad{color:var(--hw-bad)}
.hw-chip{display:inline-flex;align-items:center;gap:.35rem;border:1px solid currentColor;border-radius:99px;padding:0 .6rem;
font-size:.8rem;font-weight:600;line-height:1.6;white-space:nowrap}
.hw-banner{border:1px solid var(--hw-warn);color:var(--hw-warn);border-radius:.5rem;padding:.5rem .9rem;
background:var(--hw-card);
width:100%}
.hw-row>.hw-chip{white-space:normal;overflow-wrap:anywhere}
.hw-row{display:flex;flex-wrap:wrap;gap:.75rem;align-items:center;width:100%}
.hw-two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:1rem;width:100%}
.hw-two>*{min-width:0}
.hw-facts{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;margin:0;width:100%}
.hw-facts dt{color:var(--hw-muted)} .hw-facts dd{margin:0;overflow-wrap:anywhere}
.hw-mono,.hw-mono td{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,monospace}
.hw-key{min-width:11rem;max-width:16rem;overflow-wrap:break-word} .hw-about{min-width:13rem} .hw-value{width:60%}
.hw-scroll{overflow-x:auto;width:100%;max-width:100%}
.q-table__container{background:var(--hw-card)!important;color:var(--hw-text);border:1px solid var(--hw-line);
border-radius:.75rem!important;
box-shadow:none!important;width:100%}
.q-table tr{height:auto!important} .hw-card>.q-table td:first-child{padding-left:0!important}
.q-table td{height:auto!important;padding:.32rem .75rem!important} .hw-scroll .q-table td,.hw-keep{white-space:nowrap}
.q-table td.hw-number,.q-table th.hw-number{text-align:right} .hw-lines tbody tr:not(:last-child) td{border-bottom:1px solid}
.hw-number a{color:inherit;text-decoration:underline dotted;text-underline-offset:.2em} .hw-number a.hw-bad{color:var(--hw-bad)}
.hw-number a:hover{color:var(--hw-accent)} .hw-sort{font:inherit;color:inherit;background:none;border:0;padding:0;cursor:pointer;
min-height:1.5rem;white-space:nowrap;text-align:inherit} .hw-sort:hover{color:var(--hw-accent)} .hw-topics h2{margin-top:1.25rem}
.q-table th{padding:.32rem .75rem!important;color:var(--hw-muted);font-weight:600;font-size:.8rem}
.q-table td{font-size:.9rem;font-variant-numeric:tabular-nums}
.q-table tbody td,.q-table th{border-color:var(--hw-line)!important}
.hw-wrap td{white-space:normal!important}
.hw-wrap td.hw-keep{white-space:nowrap!important} .hw-long{overflow-wrap:anywhere}
.hw-rows td>div{white-space:pre-wrap;overflow-wrap:anywhere;width:max-content;max-width:48rem}
.hw-rows .hw-number>div{margin-left:auto} .hw-rows.hw-plan td>div{white-space:pre;max-width:none}
.hw-plan td{border:0!important;padding:0 .75rem!important;line-height:1.35!important}
.hw-plan tr:last-child td{padding-bottom:.5rem!important}
.hw-box{width:1.15rem;height:1.15rem;margin:0;vertical-align:middle;accent-color:var(--hw-accent)}
.hw-clamp{display:-webkit-box;-webkit-box-orient:vertical;-webkit-line-clamp:3;overflow:hidden;overflow-wrap:anywhere}
.hw-spark{width:90px;height:22px;display:block} .hw-spark polyline{fill:none;stroke:var(--hw-accent);stroke-width:1.5;
vector-effect:non-scaling-stroke}
.hw-tile .hw-spark{width:100%;height:26px;margin-top:.25rem}
.hw-bar{height:.5rem;border-radius:99px;background:var(--hw-line);overflow:hidden;min-width:5rem}
.hw-bar i{display:block;height:100%;background:var(--hw-accent)}
svg.hw-flow,svg.hw-map{display:block;width:100%;height:auto;color:var(--hw-text)}
svg.hw-flow{min-width:1000px} svg text{font-family:system-ui,sans-serif;fill:var(--hw-text)}
.hw-node rect{fill:var(--hw-ground);stroke:var(--hw-line)} .hw-node text{font-size:12.5px;font-weight:600}
.hw-node .sub{font-size:11px;font-weight:400;fill:var(--hw-muted)} .hw-node.behind rect{stroke:var(--hw-warn);stroke-width:2}
.hw-node.behind .sub{fill:var(--hw-warn)}
.hw-edge path{fill:none;
stroke:color-mix(in srgb,var(--hw-muted) 45%,var(--hw-card));stroke-width:1.5} .hw-edge.on path.line{stroke:var(--hw-accent)}
.hw-edge text{font-size:11px;fill:var(--hw-muted);paint-order:stroke;stroke:var(--hw-card);stroke-width:6px;
stroke-linejoin:round}
.hw-edge rect{fill:var(--hw-card);opacity:.88}
.hw-edge.on text{fill:var(--hw-text)} .hw-edge.on text.rate{fill:var(--hw-accent);font-weight:650}
.hw-edge.stored path{stroke-dasharray:2 4}
.hw-edge.on path.move{stroke:var(--hw-card);stroke-dasharray:3 15;animation:hw-move 1.2s linear infinite}
@keyframes hw-move{to{stroke-dashoffset:-18}}
@media (prefers-reduced-motion:reduce){.hw-edge.on path.move{animation:none;stroke:none}}
.hw-map{background:var(--hw-ground);border-radius:.5rem}
svg.hw-chart{display:block;width:100%;max-width:760px;height:auto;overflow:visible}
.hw-chart polyline{fill:none;stroke-width:1.8;stroke-linejoin:round}
.hw-chart .axes line{stroke:var(--hw-line)} .hw-chart .axes text{font-size:11px;fill:var(--hw-muted)}
h3.hw{font-size:.95rem;line-height:1.3;margin:0;font-weight:650} .hw-ranges{display:flex;gap:.35rem;margin-left:auto}
.hw-ranges a{padding:.1rem .6rem;border:1px solid var(--hw-line);border-radius:99px;font-size:.85rem}
.hw-ranges a[aria-current]{background:var(--hw-wash);border-color:currentColor;font-weight:600}
.hw-legend{list-style:none;margin:.25rem 0 0;padding:0;display:flex;flex-wrap:wrap;gap:.1rem 1rem;font-size:.85rem}
.hw-legend span{display:inline-block;width:.65rem;height:.65rem;border-radius:50%;margin-right:.35rem}
.hw-tree{list-style:none;margin:0;padding-left:1.1rem;border-left:2px solid var(--hw-line)} .hw-tree li{margin:.35rem 0}
summary{cursor:pointer;display:list-item} .hw-items{columns:26rem;column-gap:2.5rem;margin:0;padding-left:1.6rem}
.hw-items li{margin:.5rem 0;break-inside:avoid} h2.hw+.hw-facts,h2.hw+.hw-row,h2.hw+.hw-scroll{margin-top:.5rem}
:is(.hw-card,.hw-scroll)+h2.hw{margin-top:1.25rem}
.hw-sql{display:grid;grid-template-columns:minmax(0,1fr) minmax(15rem,20rem);gap:1.25rem;width:100%}
.hw-sql-main{display:flex;flex-direction:column;gap:.75rem;min-width:0} .hw-sql-tables{max-height:70vh;overflow:auto}
.hw-sql-tables details{border-bottom:1px solid var(--hw-line);padding:.2rem 0;overflow-wrap:anywhere}
@media (max-width:900px){.hw-sql{grid-template-columns:minmax(0,1fr)}}
pre.hw{white-space:pre-wrap;overflow-wrap:anywhere;margin:0;font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,monospace}
.q-field__native,.q-field__input,.q-field__label{color:var(--hw-text)!important} .q-field__label{opacity:.8}
.q-dialog .q-card{background:var(--hw-card);color:var(--hw-text);max-width:min(96vw,900px)}
.hw-banner.hw-good{border-color:var(--hw-good);color:var(--hw-good)}
.hw-banner.hw-bad{border-color:var(--hw-bad);color:var(--hw-bad)}
.q-dialog .q-card>*{flex:none}
.hw-happens{margin:.25rem 0;padding-left:1.2rem} .hw-happens li{margin:.25rem 0} .hw-answer{white-space:pre-wrap;
overflow-wrap:anywhere;margin:.25rem 0}
.hw-gantt{display:grid;grid-template-columns:minmax(5rem,max-content) 1fr max-content;gap:.3rem .75rem;align-items:center;
margin:.5rem 0;width:100%}
.hw-gantt-name.inner{padding-left:1rem;color:var(--hw-muted)} .hw-gantt-name,.hw-gantt-took{font-size:.85rem}
.hw-gantt-took{text-align:right;font-variant-numeric:tabular-nums}
.hw-gantt-track{position:relative;height:1rem;background:var(--hw-ground);border-radius:.3rem;min-width:0;overflow:hidden}
.hw-gantt-track i{position:absolute;top:0;height:100%;background:var(--hw-accent);border-radius:.25rem}
.hw-gantt-track i.wait{background:var(--hw-line)} .hw-gantt-track i.call{background:var(--hw-good);top:20%;height:60%}
.hw-gantt-track i.failed{background:var(--hw-bad);top:20%;height:60%}
.hw-gantt-axis{grid-column:2;position:relative;height:1.2rem;font-size:.75rem;color:var(--hw-muted)}
.hw-gantt-axis span{position:absolute;white-space:nowrap;border-left:1px solid var(--hw-line);padding-left:.25rem}
.hw-slide{border:1px solid var(--hw-line);border-radius:.5rem;padding:.75rem 1rem;min-width:0} .hw-slide h3{font-size:1rem;
line-height:1.3;margin:0;font-weight:650} .hw-slide ul{margin:.4rem 0;padding-left:1.2rem}
.hw-slides{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:.75rem;width:100%}
@media (max-width:600px){.nicegui-content{padding:.75rem}.hw-facts{grid-template-columns:1fr}.hw-facts dt{margin-top:.4rem}
.hw-nav kbd{display:none}.hw-chart .axes text{font-size:21px}.hw-tiles{grid-template-columns:repeat(2,1fr)!important}
.hw-tiles>:last-child:nth-child(odd){grid-column:1/-1}.hw-map text{display:none}
.hw-records thead{display:none}.hw-records tr{display:flex;flex-wrap:wrap;padding:.35rem 0;border-bottom:1px solid var(--hw-line)}
.hw-records td{border:0!important;padding:.05rem .75rem!important;min-width:0!important;max-width:100%!important;text-align:left}
.hw-records td.hw-value{flex:1 0 100%}.hw-clamp{-webkit-line-clamp:5}.hw-records tbody td:before{height:auto!important}}
"""
    + DRAWINGS
)
