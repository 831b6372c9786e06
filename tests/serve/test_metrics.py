"""/metrics against what the answers say of themselves, and the dashboard against /metrics."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from .conftest import Server

REQUESTS: list[dict[str, Any]] = [
    {"prompt": "a text that ", "max_tokens": 30, "temperature": 0, "mxspec": {"k": 4, "origins": True}},
    {"prompt": "a text that ", "max_tokens": 20, "temperature": 0, "mxspec": {"k": 2, "origins": True}},
    {"prompt": "another", "max_tokens": 9, "temperature": 1, "seed": 1, "n": 3, "mxspec": {"origins": True}},
    {"prompt": "and", "max_tokens": 50, "temperature": 0, "stop": "e", "mxspec": {"origins": True}},
]


@pytest.fixture(scope="module")
def answers(server: Server) -> list[dict[str, Any]]:
    found = [server.post("/v1/completions", body).json for body in REQUESTS]
    assert server.post("/v1/completions", {"prompt": 1}).status == 400
    return found


def test_counters_are_the_sums_of_the_answers(server: Server, answers: list[dict[str, Any]]) -> None:
    choices = [choice for answer in answers for choice in answer["choices"]]
    statistics = [choice["mxspec"]["statistics"] for choice in choices]
    usages = [answer["usage"] for answer in answers]
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert cached > 0
    expected = {
        "prompt_tokens_total": sum(usage["prompt_tokens"] for usage in usages),
        "generation_tokens_total": sum(usage["completion_tokens"] for usage in usages),
        "prefix_cache_queries_total": sum(usage["prompt_tokens"] for usage in usages),
        "prefix_cache_hits_total": cached,
        "spec_decode_num_draft_tokens_total": sum(one["drafted"] for one in statistics),
        "spec_decode_num_accepted_tokens_total": sum(one["accepted"] for one in statistics),
        "spec_decode_num_accepted_tokens_per_pos_total": sum(one["accepted"] for one in statistics),
        "spec_decode_num_drafts_total": sum(
            rounds for one in statistics for k, rounds in one["rounds_by_k"].items() if k != "0"
        ),
        "request_success_total": len(choices),
        "time_to_first_token_seconds_count": len(choices),
        "e2e_request_latency_seconds_count": len(choices),
        "request_generation_tokens_sum": sum(usage["completion_tokens"] for usage in usages),
        "inter_token_latency_seconds_count": sum(usage["completion_tokens"] for usage in usages) - len(choices),
        "num_requests_running": 0,
        "num_requests_waiting": 0,
    }
    assert {name: server.metric(f"mxspec:{name}", model_name="tiny") for name in expected} == expected
    for place in range(4):
        kept = sum(sum(one["accepted_by_position"][place : place + 1]) for one in statistics)
        assert server.metric("mxspec:spec_decode_num_accepted_tokens_per_pos_total", position=str(place)) == kept
    stopped = sum(choice["finish_reason"] == "stop" for choice in choices)
    assert server.metric("mxspec:request_success_total", finished_reason="stop") == stopped
    assert server.metric("mxspec:http_responses_total", route="/v1/completions", status="400") == 1
    spent = sum(one["prefill_s"] + one["waiting_s"] for one in statistics)
    assert server.metric("mxspec:time_to_first_token_seconds_sum") == pytest.approx(spent)


def test_the_dashboard_queries_existing_metrics(server: Server, answers: list[dict[str, Any]]) -> None:
    assert answers
    text = server.request("GET", "/metrics").body.decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    labels = {sample.name: set(sample.labels) for sample in samples}
    dashboard = json.loads(files("mxspec.serve").joinpath("dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 20
    asked = set()
    for expression in expressions:
        names = re.findall(r"\b(?:mxspec:|process_)\w+", expression)
        assert names
        assert expression.count("(") == expression.count(")")
        asked |= set(names)
        for name in names:
            assert name in labels, f"{name} is not in /metrics"
        grouped = {label for found in re.findall(r"by \(([^)]*)\)", expression) for label in found.split(", ")}
        chosen = set(re.findall(r"(\w+)=~", expression))
        assert grouped | chosen <= set().union(*(labels[name] for name in names))
    own = {re.sub(r"_(bucket|sum|count)$", "", name) for name in labels if name.startswith("mxspec:")}
    own = {name for name in own if not name.endswith("_created")}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert own - shown == set(), "metrics that no panel shows"
    (query,) = [one for one in dashboard["templating"]["list"] if one["name"] == "model"]
    assert query["definition"] == "label_values(mxspec:num_requests_running, model_name)"
