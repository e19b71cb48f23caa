#!/usr/bin/env python3
"""Writes the Grafana dashboards of the Helm chart from the descriptions below.

Usage: tools/write_dashboards.py [--check]

  --check   writes nothing; 1 and the names of files that are not what would be written

Panels show rates over $__rate_interval, never sums since the start. SELECT in an expression stands for the label
matchers of the dashboard's variables.
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "deploy/helm/ringfill/files/dashboards"
SELECT = 'namespace=~"$namespace",instance=~"$instance"'
PANELS_A_ROW = 3
WIDTH, HEIGHT = 24 // PANELS_A_ROW, 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def rate(name, by="", matchers=""):
    """Of a counter, summed over what `by` does not name."""
    inside = ",".join(filter(None, [matchers, "SELECT"]))
    return f"sum{f' by ({by}) ' if by else ''}(rate({name}{{{inside}}}[$__rate_interval]))"


def mean(name, by=""):
    """Of a histogram's observations."""
    return f"{rate(name + '_sum', by)} / {rate(name + '_count', by)}"


def quantile(q, name, by=""):
    grouped = ", ".join(filter(None, ["le", by]))
    return f"histogram_quantile({q}, {rate(name + '_bucket', grouped)})"


def quantiles(name, by=""):
    """Targets for the median and the tail."""
    legend = f" {{{{{by}}}}}" if by else ""
    return [(quantile(q, name, by), f"p{100 * q:g}{legend}") for q in (0.5, 0.95, 0.99)]


def panel(title, description, targets, unit="short", kind="timeseries", stacked=False):
    """`targets`: (expression, legend) pairs."""
    return {"title": title, "description": description, "targets": targets, "unit": unit, "kind": kind,
            "stacked": stacked}


def heatmap(title, description, name, unit):
    return panel(title, description, [(rate(f"{name}_bucket", "le"), "{{le}}")], unit, "heatmap")


DASHBOARDS = {
    "health": ("Ringfill: health", "Does the daemon answer, how fast, and is its ring whole?", [
        panel("Ranks in the ring", "Ranks that the ring has, and those it should have. 0 while none is formed.",
              [("ringfill_ring_ranks{SELECT}", "in the ring {{instance}}"),
               ("ringfill_configured_ranks{SELECT}", "configured {{instance}}")]),
        panel("Seconds since progress",
              "Since a layer of a step ended while there is work. It rises and falls with each layer; a line that only "
              "rises is an engine that stands still.",
              [("ringfill_seconds_since_progress{SELECT}", "layer {{instance}}"),
               ("ringfill_seconds_since_step{SELECT}", "step {{instance}}")], "s"),
        panel("Calls by outcome", "Calls that ended, a second.",
              [(rate("ringfill_requests_total", "outcome"), "{{outcome}}")], "reqps", stacked=True),
        panel("Time to first token", "Arrival to first token. It grows with the prompt: read it with the lengths of "
              "prompts on the dashboard of waits.", quantiles("ringfill_time_to_first_token_seconds"), "s"),
        panel("Time between tokens", "Between two tokens of a request.", quantiles("ringfill_inter_token_seconds"), "s"),
        panel("Duration of calls, p95", "Arrival to end, by RPC.",
              [(quantile(0.95, "ringfill_request_seconds", "rpc"), "{{rpc}}")], "s"),
        panel("Prefill speed", "Prompt tokens a second of the steps that carried some.",
              [(f"{rate('ringfill_prefill_tokens_total', 'instance')} / "
                f"{rate('ringfill_prefill_seconds_total', 'instance')}", "{{instance}}")], "short"),
        panel("Tokens", "Tokens a second, over all the time.",
              [(rate("ringfill_prefill_tokens_total"), "prompt"), (rate("ringfill_decode_tokens_total"), "generated"),
               (rate("ringfill_recomputed_tokens_total"), "computed again")], "short"),
        panel("Why requests finished", "Requests that ended as they should: a stop, their limit of tokens, or a prompt "
              "alone.", [(rate("ringfill_request_success_total", "finished_reason"), "{{finished_reason}}")], "reqps",
              stacked=True),
        panel("Repairs of the ring", "Failed steps and new epochs within five minutes. Each costs the step, and what a "
              "lost rank kept.",
              [("sum by (instance) (increase(ringfill_failed_steps_total{SELECT}[5m]))", "failed steps {{instance}}"),
               ("sum by (instance) (changes(ringfill_epoch{SELECT}[5m]))", "epochs {{instance}}")]),
        panel("Workers", "Worker processes started, lost by reason, and links found dead, within five minutes.",
              [("sum by (instance) (increase(ringfill_workers_started_total{SELECT}[5m]))", "started {{instance}}"),
               ("sum by (reason) (increase(ringfill_workers_lost_total{SELECT}[5m]))", "lost: {{reason}}"),
               ("sum by (instance) (increase(ringfill_dead_links_total{SELECT}[5m]))", "dead links {{instance}}")]),
        panel("Values that are not finite", "Requests that ended because of one, within five minutes: damaged weights, "
              "memory or arithmetic.",
              [("sum by (stage) (increase(ringfill_nonfinite_requests_total{SELECT}[5m]))", "{{stage}}")]),
        panel("CPU", "Cores that the daemon's process uses. Worker processes count elsewhere.",
              [(rate("process_cpu_seconds_total", "instance"), "{{instance}}")]),
        panel("Open files", "Descriptors of the daemon's process.", [("process_open_fds{SELECT}", "{{instance}}")]),
        panel("Versions", "Daemons by version.", [("count by (version) (ringfill_build_info{SELECT})", "{{version}}")],
              kind="stat"),
    ]),
    "waits": ("Ringfill: who waits and why", "Where the time of requests goes, and what fills steps.", [
        panel("Requests", "Waiting for admission, being worked on, and calls in progress.",
              [("sum(ringfill_queue_length{SELECT})", "queued"), ("sum(ringfill_running_requests{SELECT})", "running"),
               ("sum(ringfill_open_streams{SELECT})", "open calls")]),
        panel("Oldest in the queue", "How long the oldest request that was never admitted has waited.",
              [("ringfill_oldest_queued_seconds{SELECT}", "{{instance}}")], "s"),
        panel("KV in use", "Share of KV pages in use on the fullest rank. At 100 % requests wait for pages.",
              [("ringfill_kv_usage_ratio{SELECT}", "{{instance}}")], "percentunit"),
        panel("Mean time by phase", "How a request's time splits: before its first step, until its prompt is done, from "
              "first token to last.",
              [(mean("ringfill_request_queue_time_seconds"), "queue"),
               (mean("ringfill_request_prefill_time_seconds"), "prefill"),
               (mean("ringfill_request_decode_time_seconds"), "decode")], "s", stacked=True),
        panel("Queue time", "Arrival to first step.", quantiles("ringfill_request_queue_time_seconds"), "s"),
        panel("Prefill time", "First step to the end of the prompt.", quantiles("ringfill_request_prefill_time_seconds"),
              "s"),
        panel("Decode time", "First token to last.", quantiles("ringfill_request_decode_time_seconds"), "s"),
        heatmap("Prompt lengths", "Prompt tokens of admitted requests.", "ringfill_request_prompt_tokens", "short"),
        heatmap("Generated lengths", "Tokens that finished requests generated.", "ringfill_request_generation_tokens",
                "short"),
        panel("Steps", "Steps a second by what they carried.", [(rate("ringfill_step_seconds_count", "kind"), "{{kind}}")],
              "short", stacked=True),
        panel("Duration of steps, p95", "A step that carries a long chunk holds up the decodes in it.",
              [(quantile(0.95, "ringfill_step_seconds", "kind"), "{{kind}}")], "s"),
        panel("Size of steps", "Mean prompt tokens and decodes of a step that carried some.",
              [(mean("ringfill_step_prefill_tokens"), "prompt tokens"), (mean("ringfill_step_decode_tokens"), "decodes")]),
        panel("Turned away", "Calls a second that ended with a full queue or pool, without a ring, or past their "
              "deadline.",
              [(rate("ringfill_requests_total", "outcome", 'outcome=~"exhausted|unavailable|deadline"'), "{{outcome}}")],
              "reqps", stacked=True),
        panel("Share of time ranks wait", "For their peers, by phase, over all ranks.",
              [(f"{rate('ringfill_rank_wait_seconds_total', 'phase')} / "
                f"({rate('ringfill_rank_wait_seconds_total', 'phase')} + "
                f"{rate('ringfill_rank_busy_seconds_total', 'phase')})", "{{phase}}")], "percentunit"),
        panel("Computed again", "Tokens a second whose KV was computed again because a rank was lost or joined, or a "
              "step failed.", [(rate("ringfill_recomputed_tokens_total", "instance"), "{{instance}}")]),
    ]),
    "ring": ("Ringfill: ring balance and overlap", "Do ranks have equal work, and is communication hidden behind it?", [
        panel("Wait share of a rank", "Share of its time in which a rank waited for its peers. One rank that waits "
              "little while others wait much is the slow one.",
              [(f"{rate('ringfill_rank_wait_seconds_total', 'instance, rank')} / "
                f"({rate('ringfill_rank_wait_seconds_total', 'instance, rank')} + "
                f"{rate('ringfill_rank_busy_seconds_total', 'instance, rank')})", "rank {{rank}} {{instance}}")],
              "percentunit"),
        panel("Communication hidden", "Part of the ring's transfer time in which the rank computed. 100 % costs nothing.",
              [(f"{rate('ringfill_ring_hidden_seconds_total', 'instance, rank')} / "
                f"{rate('ringfill_ring_transfer_seconds_total', 'instance, rank')}", "rank {{rank}} {{instance}}")],
              "percentunit"),
        panel("Imbalance of steps", "Work of the busiest rank over the mean of all. 1 is even.",
              [(mean("ringfill_step_imbalance_ratio", "instance"), "mean {{instance}}"),
               (quantile(0.95, "ringfill_step_imbalance_ratio", "instance"), "p95 {{instance}}")]),
        panel("Bandwidth of the ring", "Bytes a second of a rank while it moves some.",
              [(f"{rate('ringfill_ring_bytes_total', 'instance, rank')} / "
                f"{rate('ringfill_ring_transfer_seconds_total', 'instance, rank')}", "rank {{rank}} {{instance}}")],
              "Bps"),
        panel("Bytes sent", "Over all ranks: in exchanges, and in all-gathers of replicated tokens.",
              [(rate("ringfill_ring_bytes_total"), "exchanges"),
               (rate("ringfill_all_gather_bytes_total"), "all-gathers")], "Bps"),
        panel("Rounds of communication", "A second, over all ranks, by kind.",
              [(rate("ringfill_communication_rounds_total", "kind"), "{{kind}}")], "short"),
        panel("Ring round", "Transfer time of one round of the ring's attention.",
              quantiles("ringfill_ring_round_seconds"), "s"),
        panel("All-gather", "Transfer time of one all-gather of replicated tokens; four a layer.",
              quantiles("ringfill_all_gather_seconds"), "s"),
        panel("Measured over predicted", "Seconds of prompt-only steps over what the cost model predicted. 1 is exact.",
              [(quantile(0.5, "ringfill_step_measured_over_predicted_ratio", "instance"), "{{instance}}")]),
        panel("Ways of computing", "Prompt tokens a second by who computes them and how ranks meet each other's KV.",
              [(rate("ringfill_way_tokens_total", "mode, strategy"), "{{mode}} {{strategy}}")], "short", stacked=True),
        panel("FLOP utilisation", "Operations of a rank over the rate of its matrix products, measured at start.",
              [("sum by (instance, rank) (rate(ringfill_rank_operations_total{SELECT}[$__rate_interval]) / "
                "ringfill_rank_measured_operations_per_second{SELECT})", "rank {{rank}} {{instance}}")], "percentunit"),
        panel("Busy ranks", "Cores or GPUs that compute: seconds a second of a rank, by phase.",
              [(rate("ringfill_rank_busy_seconds_total", "rank, phase"), "rank {{rank}} {{phase}}")], "short",
              stacked=True),
        panel("Partial softmax states", "A second: merged ones, and those of queries that see no key on the rank, which "
              "is traffic for nothing.",
              [(rate("ringfill_softmax_states_total", "outcome"), "{{outcome}}")], "short", stacked=True),
        panel("Attention pairs", "Pairs of a query token and a visible key a second, times layers.",
              [(rate("ringfill_attention_pairs_total", "instance, rank"), "rank {{rank}} {{instance}}")]),
        panel("Product rows", "Rows a second through half a layer's matrix products.",
              [(rate("ringfill_product_rows_total", "instance, rank"), "rank {{rank}} {{instance}}")]),
    ]),
    "memory": ("Ringfill: where memory went", "What ranks and the daemon hold, and how full the KV pages are.", [
        panel("KV in use", "Share of KV pages in use on the fullest rank.",
              [("ringfill_kv_usage_ratio{SELECT}", "{{instance}}")], "percentunit"),
        panel("KV pages", "Of each rank, used and free.",
              [('ringfill_kv_pages{state="used",SELECT}', "used, rank {{rank}} {{instance}}"),
               ('ringfill_kv_pages{state="free",SELECT}', "free, rank {{rank}} {{instance}}")]),
        panel("KV tokens in use", "Tokens that the used pages have room for, of those that all could hold.",
              [('sum by (instance) (ringfill_kv_pages{state="used",SELECT}) * on (instance) '
                "ringfill_kv_page_tokens{SELECT}", "used {{instance}}"),
               ("ringfill_kv_capacity_tokens{SELECT}", "capacity {{instance}}")]),
        panel("Memory of ranks by use", "After the last step, all ranks together. KV pages are taken at start, whether "
              "used or not. On CPUs memory is mapped when it is first written.",
              [("sum by (pool) (ringfill_memory_bytes{SELECT})", "{{pool}}")], "bytes", stacked=True),
        panel("Memory of a rank", "After its last step.",
              [("sum by (instance, rank) (ringfill_memory_bytes{SELECT})", "rank {{rank}} {{instance}}")], "bytes"),
        panel("Buffers and scratch of a rank", "What grows with the length of prompts and the size of steps.",
              [('ringfill_memory_bytes{pool=~"buffers|scratch",SELECT}', "{{pool}}, rank {{rank}} {{instance}}")],
              "bytes"),
        panel("KV pool", "Size of the KV pages of all configured ranks.",
              [("ringfill_kv_capacity_bytes{SELECT}", "{{instance}}")], "bytes", "stat"),
        panel("Resident memory", "Of the daemon's process. The mapped model file is part of it, as long as the kernel "
              "keeps it.", [("process_resident_memory_bytes{SELECT}", "{{instance}}")], "bytes"),
        panel("Requests that wait for it", "Requests in the queue, and calls refused because a pool or a queue was full.",
              [("sum(ringfill_queue_length{SELECT})", "queued"),
               (rate("ringfill_requests_total", "", 'outcome="exhausted"'), "refused a second")]),
    ]),
}


def target(index, expression, legend, kind):
    return {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "editorMode": "code",
            "expr": expression.replace("SELECT", SELECT), "legendFormat": legend, "range": True,
            "format": "heatmap" if kind == "heatmap" else "time_series"}


def options(kind):
    if kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value",
                "graphMode": "none", "justifyMode": "auto", "orientation": "auto", "textMode": "auto"}
    if kind == "heatmap":
        return {"calculate": False, "cellGap": 1, "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
                "legend": {"show": True}, "tooltip": {"show": True, "yHistogram": False},
                "yAxis": {"axisPlacement": "left", "unit": "short"}}
    return {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"}}


def defaults(described):
    out = {"unit": described["unit"]}
    if described["kind"] == "timeseries":
        out["min"] = 0
        out["custom"] = {"drawStyle": "line", "lineWidth": 1, "showPoints": "never", "spanNulls": False,
                         "fillOpacity": 30 if described["stacked"] else 0,
                         "stacking": {"mode": "normal" if described["stacked"] else "none", "group": "A"}}
    return out


def grafana_panel(index, described):
    kind = described["kind"]
    return {"id": index + 1, "type": kind, "title": described["title"], "description": described["description"],
            "datasource": DATASOURCE,
            "gridPos": {"h": HEIGHT, "w": WIDTH, "x": index % PANELS_A_ROW * WIDTH, "y": index // PANELS_A_ROW * HEIGHT},
            "targets": [target(i, *pair, kind) for i, pair in enumerate(described["targets"])],
            "fieldConfig": {"defaults": defaults(described), "overrides": []}, "options": options(kind)}


def variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": DATASOURCE, "definition": query,
            "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1, "multi": True, "includeAll": True,
            "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}, "hide": 0, "options": [], "regex": "",
            "skipUrlSync": False}


def dashboard(name):
    title, description, panels = DASHBOARDS[name]
    return {
        "uid": f"ringfill-{name}", "title": title, "description": description, "tags": ["ringfill"],
        "schemaVersion": 39, "version": 1, "editable": True, "graphTooltip": 1, "timezone": "", "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"}, "fiscalYearStartMonth": 0, "weekStart": "", "timepicker": {},
        "annotations": {"list": []},
        "links": [{"type": "dashboards", "tags": ["ringfill"], "title": "Ringfill", "asDropdown": True,
                   "includeVars": True, "keepTime": True, "targetBlank": False, "icon": "external link", "tooltip": "",
                   "url": ""}],
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1,
             "current": {}, "hide": 0, "includeAll": False, "multi": False, "options": [], "regex": "",
             "skipUrlSync": False},
            variable("namespace", "Namespace", "label_values(ringfill_build_info, namespace)"),
            variable("instance", "Instance",
                     'label_values(ringfill_build_info{namespace=~"$namespace"}, instance)')]},
        "panels": [grafana_panel(i, described) for i, described in enumerate(panels)]}


def main():
    stale = []
    for name in DASHBOARDS:
        path = FOLDER / f"{name}.json"
        text = json.dumps(dashboard(name), indent=2) + "\n"
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv[1:]:
            stale.append(path.name)
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"run tools/write_dashboards.py: {', '.join(stale)} would change", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
