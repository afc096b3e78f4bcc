"""Transactions: what is open, who is asked, what is discarded (docs/transactions.md)."""

from __future__ import annotations

from broker.services.transaction.transactions import RoundReport, Transactions

__all__ = ["RoundReport", "Transactions"]
