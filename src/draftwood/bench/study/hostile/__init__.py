"""Workloads on which drafting can only lose."""
