"""The answer of ``kvfabric claims`` as plain JSON values."""

from dataclasses import asdict

from kvfabric import __version__
from kvfabric.export.claims_rows import change_rows
from kvfabric.plan.claims.answer import ClaimsAnswer
from kvfabric.plan.claims.cost import CostComparison
from kvfabric.plan.claims.judge import ClaimVerdict
from kvfabric.plan.claims.settings import BASE_REASONS


def answer_to_dict(answer: ClaimsAnswer) -> dict[str, object]:
    """Return verdicts, the base case with its reasons, parts and every cell."""
    cost = answer.cost
    return {
        "kvfabric_version": __version__,
        "verdicts": [_verdict(verdict) for verdict in answer.verdicts],
        "base": asdict(answer.base),
        "base_reasons": [{"value": value, "reason": reason} for value, reason in BASE_REASONS],
        "num_runs": answer.num_runs,
        "evidence": answer.evidence_counts,
        "parts": [
            _comparison(comparison)
            for comparison in (cost.two_tiers, cost.three_tiers, *cost.published_sizes)
        ],
        "cells": change_rows(answer.changes),
    }


def _verdict(verdict: ClaimVerdict) -> dict[str, object]:
    claim = verdict.claim
    return {
        "claim": claim.key,
        "text": claim.text,
        "claimed": claim.range_text,
        "source": claim.source,
        "finding": verdict.finding.value,
        "numbers": verdict.text,
        "conditions": list(verdict.conditions),
    }


def _comparison(comparison: CostComparison) -> dict[str, object]:
    return {"other": asdict(comparison.other), "zcube": asdict(comparison.zcube)}
