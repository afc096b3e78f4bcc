"""Transactions: what is open, who is asked, what is discarded (docs/transactions.md)."""

from __future__ import annotations

from broker.services.transaction.service import RoundReport, Transactions

__all__ = ["RoundReport", "Transactions"]
